"""A program: trains tiny runs of both agents for two updates, then one more, alone or as one of several processes.

    python -m tests.scaling.run_together FOLDER [COORDINATOR NUM_PROCESSES PROCESS_ID]

On all devices; the runs' folders are FOLDER/ppo and FOLDER/dqn.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import jax

import jaxrl_trade as jt
from jaxrl_trade import hosts
from tests.train import tiny

DEVICES, UPDATES = 4, 3
RULES = jt.EnvConfig.net(episode_length=12, diversity_window=4)  # episodes end, and start afresh, within a collection
SIZES = {"env": RULES, "n_episodes": 8, "timesteps_per_episode": 16, "updates": UPDATES}
CONFIGS = {
    "ppo": jt.PPOConfig.net(**SIZES, epochs=2, minibatches=2, **tiny.NETWORKS),
    # 32 rows a device and an update: the replays are full, and overwritten, in the second
    "dqn": jt.DQNConfig.net(
        **SIZES,
        batch_size=16,
        replay_capacity=DEVICES * 40,
        learning_starts=DEVICES * 20,
        shared_hidden=(8,),
        head_hidden=8,
        curiosity_hidden=(8,),
    ),
}


def main(folder: str, *place: str) -> None:
    """Trains."""
    if place:
        coordinator, num_processes, process_id = place
        hosts.join(coordinator, int(num_processes), int(process_id), timeout=60)
    market, key = tiny.market(60), jax.random.key(3)
    for name, config in CONFIGS.items():
        train = jt.train_ppo if name == "ppo" else jt.train_dqn
        for updates in (UPDATES - 1, UPDATES):
            train(
                market,
                dataclasses.replace(config, updates=updates),
                key,
                market,
                folder=Path(folder) / name,
                resume=updates == UPDATES,
                checkpoint_every=1,
                devices="all",
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
