"""From a price file to clean bars, and from bars to features. Host side only: pandas, pyarrow and TA-Lib load on first use."""

from jaxrl_trade.bars.bars import Bars, load_bars, load_instruments, sample_bars
from jaxrl_trade.bars.features import (
    FEATURE_NAMES,
    FEATURE_RANGES,
    FEATURE_VERSION,
    WARMUP,
    FeatureFunction,
    FeatureTable,
    features,
    features_by,
)
from jaxrl_trade.bars.lookahead import LookaheadReport, check_lookahead
from jaxrl_trade.bars.options import LoadOptions, parse_columns
from jaxrl_trade.bars.quality import DataReport, Gap

__all__ = [
    "FEATURE_NAMES",
    "FEATURE_RANGES",
    "FEATURE_VERSION",
    "WARMUP",
    "Bars",
    "DataReport",
    "FeatureFunction",
    "FeatureTable",
    "Gap",
    "LoadOptions",
    "LookaheadReport",
    "check_lookahead",
    "features",
    "features_by",
    "load_bars",
    "load_instruments",
    "parse_columns",
    "sample_bars",
]
