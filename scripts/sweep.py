"""A sweep of PPO's learning rate and entropy bonus: settings x seeds in one program, chosen on validation bars, tested once.

    python scripts/sweep.py                          # the bundled hourly EURUSD bars: 4 settings x 3 seeds
    python scripts/sweep.py my.csv --seeds 8 --devices all

Prints the table of settings and the chosen one's backtest on bars that no setting was chosen on, and keeps all of it in
runs/script-sweep; begun again, it goes on where it was stopped. `jaxrl-trade sweep ppo` does the same with any grid.
"""

import argparse

import jax

import jaxrl_trade as jt

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data", nargs="?", help="price file; the bundled sample when left out")
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--updates", type=int, default=40)
parser.add_argument("--devices", type=lambda text: text if text == "all" else int(text), help="a number, or all")
arguments = parser.parse_args()

bars = jt.load_bars(arguments.data) if arguments.data else jt.sample_bars()
market = jt.Market.from_bars(bars)  # 51 features; the warm-up bars are gone
train, validation, test = jt.split(market, fractions=(0.7, 0.15, 0.15), embargo=320)
config = jt.PPOConfig.net(n_episodes=32, timesteps_per_episode=250, updates=arguments.updates)

grid = {"learning_rate": (3e-4, 1e-3), "entropy_coef": (0.001, 0.01)}  # every combination is a setting
keys = jax.random.split(jax.random.key(0), arguments.seeds)  # the same for every setting
result = jt.sweep(train, config, grid, keys, validation, folder="runs/script-sweep", devices=arguments.devices)

first, last = (int(bar) + len(bars.frame) - market.n_bars for bar in test.segments[0])
report = result.backtest(bars, first, last + 1)  # the chosen setting's seeds; every run counts as a trial
print(report.summary())
print(report.save("runs/script-sweep"))
