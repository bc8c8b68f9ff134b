"""Bytes to messages and back, by readers and writers compiled once per class and version.

`decode` and `encode` look the compiled function up, or make it on first use, and turn every way it can fail into one
error: what a peer sent is a `RemoteProtocolError`, what our own code tried to write is a `LocalProtocolError`.

A reader never trusts a count: a declared length is compared with the bytes that are there, and with the number of
elements that the message may carry (`budget`), before anything is made.
"""

import struct
from collections.abc import Generator
from typing import Any, TypeVar

from klamm.model.buffer import Buffer
from klamm.model.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.budget import UNBOUNDED
from klamm.protocol.reader import Reader, SlicedReader, compile_reader, compile_sliced_reader
from klamm.protocol.schema import declaration
from klamm.protocol.writer import SlicedWriter, Writer, compile_sliced_writer, compile_writer

M = TypeVar("M")

_readers: dict[tuple[type[Any], int], Reader] = {}
_sliced_readers: dict[tuple[type[Any], int], SlicedReader] = {}
_writers: dict[tuple[type[Any], int], Writer] = {}
_sliced_writers: dict[tuple[type[Any], int], SlicedWriter] = {}


def decode(cls: type[M], version: int, buf: Buffer, offset: int = 0, *, elements_max: int = UNBOUNDED) -> tuple[M, int]:
    """Read one message that starts at `offset`; returns it and the offset after it.

    Fields of type `records` are views of `buf` and keep it alive. Bytes after the message are left alone.
    ElementLimitError: its arrays and tagged fields have more than `elements_max` elements in all.
    """
    reader = _readers.get((cls, version)) or _reader(cls, version)
    try:
        return reader(buf, offset, len(buf), elements_max)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _unreadable(cls, version, error) from error


def decode_in_slices(
    cls: type[M], version: int, buf: Buffer, offset: int = 0, *, elements_max: int = UNBOUNDED
) -> Generator[None, None, tuple[M, int]]:
    """The same for a large message: a generator that yields after each slice of the work, and returns the message."""
    reader = _sliced_readers.get((cls, version))
    if reader is None:
        _check_version(cls, version)
        reader = _sliced_readers[cls, version] = compile_sliced_reader(cls, version)
    try:
        return (yield from reader(buf, offset, len(buf), elements_max))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _unreadable(cls, version, error) from error


def _unreadable(cls: type[Any], version: int, error: Exception) -> RemoteProtocolError:
    name = declaration(cls).name
    return RemoteProtocolError(f"{name} v{version} ends early or holds no valid text: {error}")


def encode(msg: object, version: int) -> bytes:
    """The bytes of a message, without header or length."""
    pieces: list[Any] = []
    encode_into(msg, version, pieces)
    try:
        return b"".join(pieces)
    except TypeError as error:
        raise LocalProtocolError(f"{type(msg).__name__} v{version} cannot be written: {error}") from error


def encode_into(msg: object, version: int, out: list[Any]) -> None:
    """Append the bytes of a message to `out`, piece by piece.

    The value of a `records` field is appended as it is and may be anything with a length: a view, or a slice of a
    file that the socket will send by itself. After an error `out` may hold a part of the message.
    """
    cls = type(msg)
    writer = _writers.get((cls, version)) or _writer(cls, version)
    try:
        writer(msg, out.append)
    except _UNWRITABLE as error:
        raise LocalProtocolError(f"{cls.__name__} v{version} cannot be written: {error}") from error


def encode_in_slices(msg: object, version: int, out: list[Any]) -> Generator[None, None, None]:
    """As `encode_into` for a large message: a generator that yields after each slice of the work."""
    cls = type(msg)
    writer = _sliced_writers.get((cls, version))
    if writer is None:
        _check_version(cls, version)
        writer = _sliced_writers[cls, version] = compile_sliced_writer(cls, version)
    try:
        yield from writer(msg, out.append)
    except _UNWRITABLE as error:
        raise LocalProtocolError(f"{cls.__name__} v{version} cannot be written: {error}") from error


# What generated code raises for a value of the wrong type or out of range.
_UNWRITABLE = (struct.error, AttributeError, TypeError, ValueError, OverflowError)


def _reader(cls: type[Any], version: int) -> Reader:
    _check_version(cls, version)
    reader = _readers[cls, version] = compile_reader(cls, version)
    return reader


def _writer(cls: type[Any], version: int) -> Writer:
    _check_version(cls, version)
    writer = _writers[cls, version] = compile_writer(cls, version)
    return writer


def _check_version(cls: type[Any], version: int) -> None:
    first, last = declaration(cls).versions
    if not first <= version <= last:
        raise LocalProtocolError(f"{cls.__name__} has versions {first} to {last}, not {version}")
