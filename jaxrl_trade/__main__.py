"""`python -m jaxrl_trade` is the command `jaxrl-trade`."""

import sys

from jaxrl_trade.cli import main

if __name__ == "__main__":
    sys.exit(main())
