"""From a path to the bytes of a price file: folders, opening, decompression, archives, text encoding. Knows nothing of prices."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath, PurePosixPath
from typing import Protocol, TypeVar

from jaxrl_trade.bars.options import listed
from jaxrl_trade.spelling import meant_path

AnyPath = TypeVar("AnyPath", bound=PurePath)
Opened = TypeVar("Opened")

# chosen over notes lying in the same archive or folder
TABLE_SUFFIXES = {".csv", ".tsv", ".parquet", ".pq", ".feather", ".arrow", ".json", ".jsonl"}
PACKED_SUFFIXES = {".gz", ".zip", ".zst", ".bz2", ".xz", ".txt"}
BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
# of what unpacks more tightly than prices: the least bytes, unpacked over packed (minutes of one price reach 112 in zstd)
UNSUSPECTED, TIGHTEST = 1 << 26, 200
CHUNK = 1 << 20
MAX_LAYERS = 3  # a compressed file inside a zip is common, deeper nesting is not a price file


class Stream(Protocol):
    """Bytes that are read one after the other."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes more, none at the end."""

    def tell(self) -> int:
        """Bytes read so far."""


def price_files(folder: Path) -> list[Path]:
    """The price files in a folder and the folders in it, sorted; hidden files and notes beside tables are left out.

    Raises:
      OSError: a folder cannot be read.
      ValueError: there is none.
    """

    def fail(error: OSError) -> None:
        raise OSError(f"cannot read {error.filename}: {error.strerror}")

    found = []
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not _is_hidden(name)]
        found += [Path(place, name) for name in names if not _is_hidden(name)]
    tables = _tables_among(found)
    if not tables:
        raise ValueError(f"there is no price file in the folder {folder}")
    return sorted(tables)


def read_file(path: Path) -> bytes:
    """Content of the price file at `path`, out of any compression and archive around it.

    Raises:
      OSError: nothing there, or not readable.
      ValueError: empty, damaged, far larger than it looks, or an archive of several price files.
    """
    try:
        mode = path.stat().st_mode
        is_device = stat.S_ISCHR(mode) or stat.S_ISBLK(mode)  # it may have no end
        data = b"" if is_device else path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}{meant_path(path)}") from None
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror or error}") from None
    if is_device:
        raise ValueError(f"{path} is a device, not a file")
    packed = len(data)
    for _ in range(MAX_LAYERS):
        unpack = next((unpack for magic, unpack in _UNPACKERS.items() if data.startswith(magic)), None)
        if unpack is None:
            break
        try:
            data = unpack(data, path)
            refuse_bomb(len(data), packed, path)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError):
            raise ValueError(f"{path} is damaged or cut off: it does not decompress") from None
    if not data or data.isspace():
        raise ValueError(f"{path} is empty")
    return data


def refuse_bomb(unpacked: int, packed: int, path: object) -> None:
    """Refuse what unpacks to far more bytes than prices do.

    Raises:
      ValueError: it is large, and packed more tightly than any table of prices.
    """
    if unpacked > UNSUSPECTED and unpacked > TIGHTEST * packed:
        raise ValueError(
            f"{path} unpacks to more than {TIGHTEST} times its size, as no prices do; if it is what you mean, unpack it first"
        )


def to_text(data: bytes, path: object) -> bytes:
    """Text of any usual encoding as UTF-8 without a byte order mark.

    Raises:
      ValueError: the bytes are not text.
    """
    for mark, encoding in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode(data[len(mark) :], encoding, path).encode()
    head = data[:4096]
    if len(head) >= 4 and head[1::2].count(0) > len(head) // 4:
        return _decode(data, "utf-16-le", path).encode()
    if len(head) >= 4 and head[::2].count(0) > len(head) // 4:
        return _decode(data, "utf-16-be", path).encode()
    control = sum(byte < 32 and byte not in b"\t\n\r\f" for byte in head)
    if b"\0" in data or control > len(head) // 100:
        raise ValueError(f"{path} is not a price file: it holds binary data, neither text nor Parquet")
    if data.isascii():
        return data
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1").encode()  # names may be garbled, digits are not
    return data


def _decode(data: bytes, encoding: str, path: object) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not valid {encoding.upper()} text: bad bytes at offset {error.start}") from None


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "_")) or name == "__MACOSX"  # Spark and Hive keep notes in _SUCCESS, _metadata


def _tables_among(paths: Sequence[AnyPath]) -> list[AnyPath]:
    """Those that a suffix says to be tables; all where there are none."""
    return [path for path in paths if {s.lower() for s in path.suffixes} & TABLE_SUFFIXES] or list(paths)


def _unzip(data: bytes, path: Path) -> bytes:
    with io.BytesIO(data) as packed, _of_zip(lambda: zipfile.ZipFile(packed)) as archive:
        members = {PurePosixPath(info.filename): info for info in archive.infolist() if not info.is_dir()}
        chosen = _tables_among([name for name in members if not any(_is_hidden(part) for part in name.parts)])
        if PurePosixPath("xl/workbook.xml") in members:
            raise ValueError(f"{path} is an Excel workbook; save its sheet as CSV")
        if not chosen:
            raise ValueError(f"{path} is an empty archive")
        if len(chosen) > 1:
            raise ValueError(
                f"{path} holds {len(chosen)} price files ({listed(map(str, chosen), most=6)}); unpack it and give one of them"
            )
        info = members[chosen[0]]
        if info.flag_bits & 1:
            raise ValueError(f"{path} is encrypted; unpack it and give the price file in it")
        with _of_zip(lambda: archive.open(info)) as stream:
            return _read_all(stream, packed, path)


def _of_zip(opened: Callable[[], Opened]) -> Opened:
    try:
        return opened()
    except ValueError:  # a damaged directory of the archive points to before its beginning
        raise zipfile.BadZipFile from None


def _unzstd(data: bytes, path: Path) -> bytes:
    import pyarrow as pa

    with pa.BufferReader(data) as packed, pa.CompressedInputStream(packed, "zstd") as stream:
        return _read_all(stream, packed, path)


def _opened(opener: Callable[[io.BytesIO], io.BufferedIOBase]) -> Callable[[bytes, Path], bytes]:
    def unpack(data: bytes, path: Path) -> bytes:
        with io.BytesIO(data) as packed, opener(packed) as stream:
            return _read_all(stream, packed, path)

    return unpack


def _read_all(stream: Stream, packed: Stream, path: Path) -> bytes:
    """Content of a stream that unpacks another as it is read, and ends as soon as much came out of little."""
    chunks, size, start = [], 0, packed.tell()
    while chunk := stream.read(CHUNK):
        chunks.append(chunk)
        size += len(chunk)
        refuse_bomb(size, packed.tell() - start, path)
    return b"".join(chunks)


# first bytes of a file -> how to unpack it
_UNPACKERS: dict[bytes, Callable[[bytes, Path], bytes]] = {
    b"\x1f\x8b": _opened(lambda file: gzip.GzipFile(fileobj=file)),
    b"PK\x03\x04": _unzip,
    b"PK\x05\x06": _unzip,
    b"\x28\xb5\x2f\xfd": _unzstd,
    b"BZh": _opened(bz2.BZ2File),
    b"\xfd7zXZ\x00": _opened(lzma.LZMAFile),
}
