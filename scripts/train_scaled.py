"""PPO on all devices of this machine, or of several: one run divided over them, or many runs side by side.

    python scripts/train_scaled.py                  # one run, 32 episodes on each device
    python scripts/train_scaled.py --seeds 16       # 16 runs of 32 episodes, as many on each device as on any other
    python scripts/train_scaled.py --coordinator 10.0.0.1:1234 --num-processes 2 --process-id 0    # and 1 on the other host
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python scripts/train_scaled.py   # eight simulated devices on a CPU

Prints the speed and the reward as it goes (of many runs their mean and spread), and at the end the backtest of the policy on bars
it never saw; of many runs, of the one that was best on validation bars.
"""

import argparse
import time

import jax
import numpy as np

import jaxrl_trade as jt
from jaxrl_trade import hosts, scale
from jaxrl_trade.agents import actor_policy

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data", nargs="?", help="price file; the bundled sample when left out")
parser.add_argument("--seeds", type=int, help="this many independent runs; one run on all devices when left out")
parser.add_argument("--executor", choices=["shard_map", "pmap", "vmap"], default="shard_map")
parser.add_argument("--devices", type=int, help="all when left out; with vmap, the number of shares on one device")
parser.add_argument("--episodes", type=int, default=32, help="of each device, or of each run with --seeds")
parser.add_argument("--updates", type=int, default=40)
parser.add_argument("--coordinator", help="HOST:PORT of process 0 of several, or auto; one run on the devices of all")
parser.add_argument("--num-processes", type=int)
parser.add_argument("--process-id", type=int)
arguments = parser.parse_args()

if arguments.coordinator:
    hosts.join(arguments.coordinator, arguments.num_processes, arguments.process_id)
bars = jt.load_bars(arguments.data) if arguments.data else jt.sample_bars()
market = jt.Market.from_bars(bars)  # 51 features; the warm-up bars are gone
train, validation, test = jt.split(market, fractions=(0.7, 0.15, 0.15), embargo=320)
devices = arguments.devices or jax.device_count()
episodes = arguments.episodes * (1 if arguments.seeds else devices)
config = jt.PPOConfig.net(n_episodes=episodes, timesteps_per_episode=250, updates=arguments.updates)

if arguments.seeds:
    program = scale.seeds(config, train, arguments.devices, arguments.executor)
    state = program.init(jax.random.split(jax.random.key(0), arguments.seeds))
else:
    program = scale.data_parallel(config, train, arguments.devices, arguments.executor)
    state = program.init(jax.random.key(0))

chunk = max(1, config.updates // 10)  # the first line's speed holds the compilation
for done in range(0, config.updates, chunk):
    began, updates = time.perf_counter(), min(chunk, config.updates - done)
    state, metrics = program.advance(state, None, updates)
    reward = np.asarray(metrics.reward)[..., -1]  # of the last update, of every run
    speed = config.total_experiences * updates * reward.size / (time.perf_counter() - began)
    spread = f" +- {reward.std():.4f}" if arguments.seeds else ""
    if hosts.is_first():
        print(f"update {done + updates:4d}  {speed:12,.0f} steps/s  reward {reward.mean():8.4f}{spread}", flush=True)
scale.check_replicas(state)


def judge(actor, part):
    """The backtest of an actor on a part of the bars."""
    first, last = (int(bar) + len(bars.frame) - market.n_bars for bar in part.segments[0])
    return jt.backtest(actor_policy(actor, config), bars, config, start=first, end=last + 1)


actors = jax.device_get(state.params.actor)
if arguments.seeds:
    runs = [jax.tree.map(lambda x, r=r: x[r], actors) for r in range(arguments.seeds)]
    returns = [judge(actor, validation).metrics.loc["agent", "total_return"] for actor in runs]
    print(f"return on validation bars: {np.mean(returns):+.2%} +- {np.std(returns):.2%}, best {max(returns):+.2%}")
    actors = runs[int(np.argmax(returns))]
summary = hosts.from_first(lambda: judge(actors, test).summary())  # the others wait
if hosts.is_first():
    print(summary)
