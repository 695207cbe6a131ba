"""From a path to the bytes of one price file: opening, decompression, archives, text encoding. Knows nothing of prices."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

TABLE_SUFFIXES = {
    ".csv",
    ".tsv",
    ".parquet",
    ".pq",
    ".feather",
    ".arrow",
}  # chosen over notes lying in the same archive
BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))
MAX_LAYERS = 3  # a compressed file inside a zip is common, deeper nesting is not a price file


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Content of the price file at `path`, out of any compression and archive around it.

    Raises:
      OSError: nothing there, a folder, or not readable.
      ValueError: empty, damaged, or an archive of several price files.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the path of one price file")
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None
    except OSError as error:
        raise OSError(f"cannot read {path}: {error.strerror or error}") from None
    for _ in range(MAX_LAYERS):
        unpack = next((unpack for magic, unpack in _UNPACKERS.items() if data.startswith(magic)), None)
        if unpack is None:
            break
        try:
            data = unpack(data, path)
        except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError) as error:
            raise ValueError(f"{path} is damaged or cut off: it does not decompress ({error})") from None
    if not data.strip():
        raise ValueError(f"{path} is empty")
    return data


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


def _unzip(data: bytes, path: Path) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [
            info
            for info in archive.infolist()
            if not info.is_dir()
            and not PurePosixPath(info.filename).name.startswith(".")
            and "__MACOSX" not in info.filename
        ]
        tables = [
            info for info in members if {s.lower() for s in PurePosixPath(info.filename).suffixes} & TABLE_SUFFIXES
        ]
        chosen = tables or members
        if not chosen:
            raise ValueError(f"{path} is an empty archive")
        if len(chosen) > 1:
            names = ", ".join(info.filename for info in chosen[:6]) + (", ..." if len(chosen) > 6 else "")
            raise ValueError(f"{path} holds {len(chosen)} price files ({names}); unpack it and give one of them")
        if chosen[0].flag_bits & 1:
            raise ValueError(f"{path} is encrypted; unpack it and give the price file in it")
        return archive.read(chosen[0])


def _unzstd(data: bytes, path: Path) -> bytes:
    import pyarrow as pa

    del path
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return stream.read()


# first bytes of a file -> how to unpack it
_UNPACKERS: dict[bytes, Callable[[bytes, Path], bytes]] = {
    b"\x1f\x8b": lambda data, path: gzip.decompress(data),
    b"PK\x03\x04": _unzip,
    b"PK\x05\x06": _unzip,
    b"\x28\xb5\x2f\xfd": _unzstd,
    b"BZh": lambda data, path: bz2.decompress(data),
    b"\xfd7zXZ\x00": lambda data, path: lzma.decompress(data),
}
