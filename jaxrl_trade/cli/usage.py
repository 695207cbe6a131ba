"""What `--help` says beside the flags: the commands, examples to paste, exit codes."""

from __future__ import annotations

from collections.abc import Mapping

PROGRAM = "jaxrl-trade"
EXIT_CODES = """\
exit codes
  0    done; also after SIGTERM, with a checkpoint
  1    a check failed: a feature knows the future
  2    a mistake to correct, which one line on stderr names
  70   a fault of this program, with its traceback
  130  ended by Ctrl-C; of training, with a checkpoint
  141  whoever read the output stopped reading"""

EVERYWHERE = """\
every command
  --json   the result as JSON on stdout, everything else on stderr; of a mistake {"error": ..., "exit_code": 2}
  --debug  the traceback of a mistake"""

# words -> examples, what they do
EXAMPLES: dict[tuple[str, ...], tuple[tuple[str, str], ...]] = {
    ("train", "ppo"): (
        ("train ppo", "the bundled hourly EURUSD bars of 2017: three to four minutes on two CPU cores"),
        ("train ppo --data btc.csv --out runs/btc", "your own prices"),
        ("train ppo --data prices/", "every instrument of a folder; or several files, or --all-symbols of one"),
        ("train ppo --data btc.csv --n-episodes 512 --updates 400 --compute-dtype bfloat16", "what a GPU can take"),
        ("train ppo --data btc.csv --leverage 2 --spread 0.0002 --long-only", "another account"),
        ("train ppo --data btc.csv --reward my.py:reward --network my.py:Net", "parts of your own"),
        ("train ppo --resume runs/btc --updates 800", "go on with a run, further than planned"),
        ("train ppo --data btc.csv --json > result.json", "for a program to read"),
    ),
    ("train", "dqn"): (
        ("train dqn --data btc.csv", "a dueling DQN on your own prices"),
        ("train dqn --data btc.csv --double --n-step 5", "double Q-learning, five rewards in a target"),
        ("train dqn --resume runs/dqn-btc-net", "go on with a run that was stopped"),
    ),
    ("backtest",): (
        ("backtest runs/btc", "the run's test bars again"),
        ("backtest runs/btc --data btc_2024.csv", "other bars, all of them"),
        (
            "backtest runs/btc --data btc_2024.csv --start 2024-03-01 --end 2024-06-01 --out report",
            "a range; report/report.html",
        ),
        ("backtest runs/btc --json", "every figure, for a program to read"),
    ),
    ("walk-forward",): (
        ("walk-forward btc.csv", "four folds, each trained on the bars before its test"),
        ("walk-forward btc.csv --folds 6 --seeds 3 --out runs/walk", "the spread over random numbers too"),
        ("walk-forward btc.csv --agent dqn", "the same with a DQN"),
    ),
    ("sweep", "ppo"): (
        ("sweep ppo btc.csv --learning-rate 1e-4 3e-4 1e-3 --entropy-coef 0.001 0.01", "6 settings x 4 seeds"),
        ("sweep ppo btc.csv --gamma 0.9 0.99 --seeds 8 --at-once 8 --devices all", "in two groups, over all devices"),
        ("sweep ppo --resume runs/sweep-ppo-btc-net", "go on with a sweep that was stopped"),
    ),
    ("sweep", "dqn"): (
        ("sweep dqn btc.csv --tau 0.001 0.01 --epsilon-fraction 0.1 0.5", "4 settings x 4 seeds"),
        ("sweep dqn --resume runs/sweep-dqn-btc-net", "go on with a sweep that was stopped"),
    ),
    ("inspect",): (
        ("inspect btc.csv", "rows kept and dropped by reason, gaps, bar size, what was assumed"),
        ("inspect btc.csv --tz America/New_York --columns close=Last", "what the file leaves open"),
        ("inspect btc.csv --lookahead", "recompute the features on truncated histories; exit code 1 if one differs"),
    ),
}


def usage(commands: Mapping[tuple[str, ...], tuple[str, str]]) -> str:
    """The text of `jaxrl-trade --help`; `commands` are `cli.COMMANDS`."""
    width = max(len(" ".join(words)) for words in commands)
    lines = [f"  {' '.join(words):{width}}  {text}" for words, (_, text) in commands.items()]
    start = (
        EXAMPLES["inspect",][0],
        *EXAMPLES["train", "ppo"][:2],
        EXAMPLES["train", "ppo"][6],
        *EXAMPLES["backtest",][:2],
    )
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND [flags]",
            "",
            *lines,
            "",
            "for example",
            *_shown(start),
            "",
            EVERYWHERE,
            "",
            EXIT_CODES,
            "",
            f"{PROGRAM} COMMAND --help has a command's flags and more examples.",
        ]
    )


def examples(words: tuple[str, ...]) -> str:
    """What follows a command's flags in its `--help`."""
    return "\n".join(["for example", *_shown(EXAMPLES[words]), "", EVERYWHERE, "", EXIT_CODES])


def _shown(pairs: tuple[tuple[str, str], ...]) -> list[str]:
    return [line for command, text in pairs for line in (f"  {PROGRAM} {command}", f"      {text}")]
