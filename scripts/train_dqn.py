"""DQN from a price file to a verdict, as one pure training function.

    python scripts/train_dqn.py                       # the bundled hourly EURUSD bars
    python scripts/train_dqn.py my.csv --updates 400

Prints the backtest of the trained policy on bars it never saw, and writes the report to runs/script-dqn/report.html.
`jt.train_dqn` does the same with checkpoints, logs, and the best weights on validation bars.
"""

import argparse

import jax

import jaxrl_trade as jt
from jaxrl_trade.agents import q_policy

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("data", nargs="?", help="price file; the bundled sample when left out")
parser.add_argument("--updates", type=int, default=200)
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

bars = jt.load_bars(arguments.data) if arguments.data else jt.sample_bars()
market = jt.Market.from_bars(bars)  # 51 features; the warm-up bars are gone
train, _, test = jt.split(market, fractions=(0.7, 0.15, 0.15), embargo=320)
config = jt.DQNConfig.net(updates=arguments.updates)  # 2,048 steps and 16 gradient steps an update

run = jax.jit(jt.make_train_dqn(config, train))  # a function of a key: vmap it over seeds or hyperparameters
state, metrics = run(jax.random.key(arguments.seed))
for i in range(0, config.updates, max(1, config.updates // 10)):
    print(
        f"update {i:4d}  reward {metrics.reward[i]:8.4f}  equity {metrics.equity[i]:.4f}  "
        f"epsilon {metrics.epsilon[i]:.2f}  TD error {metrics.td_error[i]:.3f}"
    )

policy = q_policy(state.params.dueling, config)
first, last = (int(bar) for bar in test.segments[0])
skipped = len(bars.frame) - market.n_bars
report = jt.backtest(policy, bars, config, start=first + skipped, end=last + skipped + 1)
print(report.summary())
print(report.to_html("runs/script-dqn/report.html"))
