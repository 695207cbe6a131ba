"""The table of vendors: how each names its columns, and what else has to be known of its files. A new vendor is one more row."""

from __future__ import annotations

import dataclasses
import functools
import re
import unicodedata
from collections.abc import Sequence

PRICES = ("open", "high", "low", "close")
NUMBERING = re.compile(r"^\d+[a-z]?\.\s*")


@dataclasses.dataclass(frozen=True)
class Vendor:
    """A row of the table. Names are as `normalise` leaves them, several are separated by a bar.

    A file need not be any one vendor's: of all rows' names for a role, the first that a file has is taken, so rows and names
    stand in order of preference.

    Attributes:
      name: of the vendor.
      time: a moment, in one column; `date` and `clock` where two columns hold it.
      open, high, low, close, volume: of the bar; volume in units of the instrument.
      adj_close: the close after splits and dividends.
      symbol: the instrument.
      marks: names that together are found in no other vendor's files; the fields below hold where all of them are there.
      whole_prices: how many make one unit of currency, where every price is a whole number.
      no_price: the whole number that stands for a price that there is not.
    """

    name: str
    time: str = ""
    date: str = ""
    clock: str = ""
    open: str = ""
    high: str = ""
    low: str = ""
    close: str = ""
    adj_close: str = ""
    volume: str = ""
    symbol: str = ""
    marks: str = ""
    whole_prices: int = 1
    no_price: int | None = None


VENDORS = (
    Vendor("Binance", time="open time", volume="base asset volume"),
    Vendor("CryptoDataDownload", time="unix|unix timestamp|unix time", volume="volume btc"),
    Vendor("CryptoCompare", volume="volumefrom|volume from"),
    Vendor("Polygon", time="window start"),
    Vendor(
        "Databento",
        time="ts event",
        symbol="symbol|instrument id",
        marks="rtype|publisher id",
        whole_prices=10**9,
        no_price=2**63 - 1,
    ),
    Vendor("MetaTrader 5", volume="tickvol|tick volume"),
    Vendor("Dukascopy", time="gmt time|local time|utc time"),
    Vendor("Yahoo", time="datetime", adj_close="adj close"),
    Vendor("Alpha Vantage", time="timestamp", adj_close="adjusted close"),
    Vendor("Tiingo", adj_close="adjclose"),
    Vendor(
        "Stooq in Polish",
        time="data",
        open="otwarcie",
        high="najwyzszy",
        low="najnizszy",
        close="zamkniecie",
        volume="wolumen",
    ),
    Vendor(
        "in German",
        time="zeitstempel|zeitpunkt|datum|zeit",
        date="datum",
        clock="uhrzeit|zeit",
        open="eroffnung|eroeffnung|eroffnungskurs|eroeffnungskurs|eroffn.|erster",
        high="hoch|tageshoch|hochst|hoechst|hochstkurs|hoechstkurs",
        low="tief|tagestief|tiefst|tiefstkurs",
        close="schluss|schlusskurs|letzter|zuletzt|kurs",
        volume="stucke|stuecke|stuck|stueck|stuckzahl|stueckzahl|volumen|umsatz",
    ),
    Vendor(
        "in French",
        clock="heure",
        open="ouverture|ouv.",
        high="plus haut|haut",
        low="plus bas|bas",
        close="cloture|dernier|cours",
    ),
    Vendor(
        "in Spanish",
        time="fecha",
        date="fecha",
        clock="hora",
        open="apertura",
        high="maximo|alto",
        low="minimo|bajo",
        close="cierre|ultimo",
        volume="volumen",
    ),
    Vendor(
        "in Italian", date="data", clock="ora", open="apertura", high="massimo", low="minimo", close="chiusura|ultimo"
    ),
    Vendor(
        "in Portuguese",
        date="data",
        clock="hora",
        open="abertura",
        high="maxima|maximo",
        low="minima|minimo",
        close="fechamento|fecho|ultimo",
    ),
    Vendor("Nasdaq", close="close/last"),
    Vendor("Tushare", time="trade date", symbol="ts code"),
    Vendor(
        "AKShare",
        time="日期|时间",
        open="开盘",
        high="最高",
        low="最低",
        close="收盘",
        volume="成交量",
        symbol="股票代码",
    ),
    Vendor(
        "any other",
        time="opentime|timestamp utc|datetime utc|date time|time|time utc|date|date utc|day|bar time|ts|t"
        "|index level 0|index|unnamed",
        date="date|day",
        clock="time|clock|hour",
        open="open|o|open price|first",
        high="high|h|high price|max",
        low="low|l|low price|min",
        close="close|c|close price|last|last price|price",
        adj_close="adj. close",
        volume="volume|vol|vol.|v|base volume",
        symbol="ticker|tic|instrument|asset|pair|sym|coin",
    ),
)

ROLES = ("time", "date", "clock", *PRICES, "adj_close", "volume", "symbol")


def aliases(rows: Sequence[Vendor]) -> dict[str, tuple[str, ...]]:
    """Names by role, of all rows and in order of preference."""
    return {
        role: tuple(dict.fromkeys(name for row in rows for name in getattr(row, role).split("|") if name))
        for role in ROLES
    }


ALIASES = aliases(VENDORS)


@functools.lru_cache(1 << 16)  # wide tables have the same few parts in thousands of names
def normalise(name: str) -> str:
    """`"1. open"`, `"<OPEN>"`, `"Open (USD)"`, `"open.1"`, `"open_price"` -> four times `"open"`, `"open price"`.

    Letters lose their accents: `"Clôture"` -> `"cloture"`. A column without a name is "unnamed".
    """
    letters = unicodedata.normalize("NFD", name.strip().strip('"').strip("'").casefold())
    name = "".join(letter for letter in letters if unicodedata.category(letter) != "Mn")
    name = re.sub(r"\([^)]*\)|[<>*]", "", name)
    name = re.sub(r"\.\d+$", "", NUMBERING.sub("", name.strip()))
    name = re.sub(r"[\s_\-]+", " ", name).strip()
    return "unnamed" if re.fullmatch(r"|unnamed: ?\d+", name) else name


def role_of(name: str) -> str | None:
    """The role of a price or volume column by its name alone, None of any other name."""
    known = normalise(name)
    return next((role for role in (*PRICES, "adj_close", "volume") if known in ALIASES[role]), None)


def names_a_price(names: Sequence[str]) -> bool:
    """Whether a row of names has one that means the close, or two that mean a price."""
    found = {role_of(name) for name in names} & set(PRICES)
    return "close" in found or len(found) > 1


def vendor_of(names: Sequence[str]) -> Vendor | None:
    """The vendor whose marks are all among the names, None where no row's are."""
    known = {normalise(name) for name in names}
    return next((row for row in VENDORS if row.marks and set(row.marks.split("|")) <= known), None)
