"""Compile a reader: straight-line Python for one class in one version.

Neighbouring values of fixed width are read by one `unpack_from`, together with the length or count that follows them.
The code keeps four names throughout: `buf`, the offset `p`, `end`, which no value may pass, and `left`, the elements of
arrays and tagged fields that may still come.

A sliced reader is a generator of the same code that yields every SLICE_ELEMENTS elements, for requests so large that
reading one in one go would block the loop.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any

from klamm.model.errors import ElementLimitError, RemoteProtocolError
from klamm.protocol.schema import Array, Scalar, Sized, WireField, WireType, declaration
from klamm.protocol.source import FunctionSource, body_fields, default_source, smallest, struct_of, tagged_fields
from klamm.protocol.varint import decode_uvarint, rest_of_uvarint

Reader = Callable[[Any, int, int, int], tuple[Any, int]]
SlicedReader = Callable[[Any, int, int, int], Generator[None, None, tuple[Any, int]]]

STRING_BYTES_MAX = 32767
# Shorter arrays of numbers, which are the usual ones, have a prepared struct each.
_SHORT_ARRAY = 16


def compile_reader(cls: type[Any], version: int) -> Reader:
    """A function `(buf, offset, end, elements_max) -> (message, offset after it)`."""
    return _ReaderCompiler(cls, version).compile()


def compile_sliced_reader(cls: type[Any], version: int) -> SlicedReader:
    """The same as a generator that yields between slices and returns what the function would."""
    return _ReaderCompiler(cls, version, sliced=True).compile()


def read_uuids(buf: Any, start: int, end: int) -> list[bytes]:
    """Uuids that fill the bytes from `start` to `end`."""
    return [bytes(buf[at : at + 16]) for at in range(start, end, 16)]


def skip_tags(buf: Any, count: int, offset: int, end: int) -> int:
    """Skip `count` tagged fields that are not declared; return the offset after them."""
    for _ in range(count):
        _, offset = decode_uvarint(buf, offset)
        size, offset = decode_uvarint(buf, offset)
        offset += size
        if offset > end:
            raise too_short("a tagged field")
    return offset


def too_short(what: str) -> RemoteProtocolError:
    """The error for a value that says it is longer than what is left of the message."""
    return RemoteProtocolError(f"{what} is longer than the rest of the message")


def null_refused(what: str) -> RemoteProtocolError:
    """The error for null where there must be a value."""
    return RemoteProtocolError(f"{what} must not be null")


def too_long(what: str) -> RemoteProtocolError:
    """The error for text that no version of the protocol may carry."""
    return RemoteProtocolError(f"{what} is longer than {STRING_BYTES_MAX} bytes")


def wrong_size(what: str) -> RemoteProtocolError:
    """The error for a tagged field whose value does not fill its declared size."""
    return RemoteProtocolError(f"{what} does not fill the size its tag declares")


def too_many(what: str) -> ElementLimitError:
    """The error for an array or a row of tagged fields that takes the message over its limit."""
    return ElementLimitError(f"{what} takes the message over the limit of its elements")


class _ReaderCompiler:
    def __init__(self, cls: type[Any], version: int, *, sliced: bool = False) -> None:
        self.cls = cls
        self.sliced = sliced
        self.version = version
        self.flexible = declaration(cls).flexible_in(version)
        self.source = FunctionSource("read(buf, p, end, left)")
        self.pending: list[tuple[str, str]] = []  # targets and their struct letters, not yet written out
        self.source.scope.update(
            # Not the constructor, which would set every field to its default before it is read.
            new=object.__new__,
            rest=rest_of_uvarint,
            uvarint=decode_uvarint,
            unpack_from=struct.unpack_from,
            skip_tags=skip_tags,
            read_uuids=read_uuids,
            too_short=too_short,
            too_many=too_many,
            null_refused=null_refused,
            too_long=too_long,
            wrong_size=wrong_size,
        )

    def compile(self) -> Callable[..., Any]:
        target = self.source.fresh("m")
        if self.sliced:
            self.source.line("work = 0")
        self.read_struct(self.cls, target)
        self.flush()
        if self.sliced:
            self.source.line("yield")  # a message without arrays, too, is read by a generator
        self.source.line(f"return {target}, p")
        return self.source.compile("read", f"<reader of {self.cls.__name__} v{self.version}>")

    def flush(self) -> None:
        """Write out the pending fixed-width values as one unpack."""
        if not self.pending:
            return
        targets, codes = zip(*self.pending, strict=True)
        self.pending.clear()
        if codes == ("B",):
            self.source.line(f"{targets[0]} = buf[p]")
            self.source.line("p += 1")
            return
        layout = struct_of("".join(codes))
        unpack = self.source.use(layout.unpack_from, "unpack")
        self.source.line(f"{', '.join(targets)}{',' if len(targets) == 1 else ''} = {unpack}(buf, p)")
        self.source.line(f"p += {layout.size}")

    def read_struct(self, cls: type[Any], target: str) -> None:
        shape = declaration(cls)
        self.source.line(f"{target} = new({self.source.use(cls, 'cls')})")
        body = body_fields(shape, self.version)
        for field in shape.fields:
            if field not in body:
                # Also tagged fields, which a message may leave out.
                self.source.line(f"{target}.{field.name} = {default_source(self.source, field)}")
        for field in body:
            what = f"{shape.name}.{field.name}"
            self.read_value(field.type, f"{target}.{field.name}", what, nullable=field.nullable_in(self.version))
        if self.flexible:
            self.read_tags(cls, target)

    def read_value(self, type: WireType, target: str, what: str, *, nullable: bool = False) -> None:
        match type:
            case Scalar():
                self.pending.append((target, type.code))
            case Sized():
                self.read_sized(type, target, what, nullable=nullable)
            case Array():
                self.read_array(type.element, target, what, nullable=nullable)
            case _ if nullable:
                self.read_nullable_struct(type, target)
            case _:
                made = self.source.fresh("m")
                self.read_struct(type, made)
                self.source.line(f"{target} = {made}")

    def read_length(self, code: str) -> str:
        """Read a length into a new name: as it is, or one more than it is in flexible versions."""
        length = self.source.fresh("n")
        self.pending.append((length, "B" if self.flexible else code))
        self.flush()
        if self.flexible:
            with self.source.block(f"if {length} > 127:"):
                self.source.line(f"{length}, p = rest(buf, {length}, p)")
        return length

    def read_sized(self, type: Sized, target: str, what: str, *, nullable: bool) -> None:
        source = self.source
        length = self.read_length("h" if type.name == "string" else "i")
        stop = source.fresh("e")
        with source.block(f"if {length} > 0:" if self.flexible else f"if {length} >= 0:"):
            source.line(f"{stop} = p + {length}{' - 1' if self.flexible else ''}")
            with source.block(f"if {stop} > end:"):
                source.line(f"raise too_short({what!r})")
            if type.name == "string":
                if self.flexible:
                    with source.block(f"if {length} > {STRING_BYTES_MAX + 1}:"):
                        source.line(f"raise too_long({what!r})")
                source.line(f'{target} = str(buf[p:{stop}], "utf-8")')
            elif type.name == "blob":
                source.line(f"{target} = bytes(buf[p:{stop}])")
            else:
                source.line(f"{target} = memoryview(buf)[p:{stop}]")
            source.line(f"p = {stop}")
        with source.block("else:"):
            source.line(f"{target} = None" if nullable else f"raise null_refused({what!r})")

    def read_array(self, element: WireType, target: str, what: str, *, nullable: bool) -> None:
        source = self.source
        count = self.read_length("i")
        if self.flexible:
            source.line(f"{count} -= 1")
        # At least one byte, so that an array of empty structs cannot declare any count.
        least = max(1, smallest(element, self.version, flexible=self.flexible))
        with source.block(f"if {count} >= 0:"):
            with source.block(f"if {count} * {least} > end - p:"):
                source.line(f"raise too_short({what!r})")
            self.spend(count, what)
            if isinstance(element, Scalar):
                self.read_scalars(element, count, target)
            else:
                made = source.fresh("l")
                source.line(f"{made} = {target} = []")
                with source.block(f"for _ in range({count}):"):
                    item = source.fresh("v")
                    if isinstance(element, Scalar | Sized | Array):
                        self.read_value(element, item, f"an item of {what}")
                    else:
                        self.read_struct(element, item)
                    self.flush()
                    source.line(f"{made}.append({item})")
                    if self.sliced:
                        source.yield_after_slice()
        with source.block("else:"):
            source.line(f"{target} = None" if nullable else f"raise null_refused({what!r})")

    def spend(self, count: str, what: str) -> None:
        """Take `count` elements off what is left before any of them is made."""
        self.source.line(f"left -= {count}")
        with self.source.block("if left < 0:"):
            self.source.line(f"raise too_many({what!r})")

    def read_scalars(self, element: Scalar, count: str, target: str) -> None:
        source = self.source
        if element.name == "uuid":
            source.line(f"{target} = read_uuids(buf, p, p + {count} * 16)")
        else:
            table = source.use(_unpackers(element.code), "unpacks")
            with source.block(f"if {count} < {_SHORT_ARRAY}:"):
                source.line(f"{target} = list({table}[{count}](buf, p))")
            with source.block("else:"):
                source.line(f'{target} = list(unpack_from(f">{{{count}}}{element.code}", buf, p))')
        source.line(f"p += {count} * {element.size}")

    def read_nullable_struct(self, cls: type[Any], target: str, *, tagged: bool = False) -> None:
        """A byte says whether it is there: no is -1, inside of a tagged field 0."""
        marker = self.source.fresh("n")
        self.pending.append((marker, "b"))
        self.flush()
        with self.source.block(f"if {marker} {'<=' if tagged else '<'} 0:"):
            self.source.line(f"{target} = None")
        with self.source.block("else:"):
            made = self.source.fresh("m")
            self.read_struct(cls, made)
            self.flush()
            self.source.line(f"{target} = {made}")

    def read_tagged(self, field: WireField, target: str, what: str) -> None:
        nullable = field.nullable_in(self.version)
        if nullable and not isinstance(field.type, Scalar | Sized | Array):
            self.read_nullable_struct(field.type, target, tagged=True)
        else:
            self.read_value(field.type, target, what, nullable=nullable)

    def read_tags(self, cls: type[Any], target: str) -> None:
        source = self.source
        shape = declaration(cls)
        known = tagged_fields(shape, self.version)
        count = source.fresh("n")
        self.pending.append((count, "B"))
        self.flush()
        with source.block(f"if {count}:"):
            with source.block(f"if {count} > 127:"):
                source.line(f"{count}, p = rest(buf, {count}, p)")
            self.spend(count, f"the tagged fields of {shape.name}")
            if not known:
                source.line(f"p = skip_tags(buf, {count}, p, end)")
                return
            tag, size, stop = source.fresh("t"), source.fresh("s"), source.fresh("e")
            with source.block(f"for _ in range({count}):"):
                source.line(f"{tag}, p = uvarint(buf, p)")
                source.line(f"{size}, p = uvarint(buf, p)")
                source.line(f"{stop} = p + {size}")
                with source.block(f"if {stop} > end:"):
                    source.line("raise too_short('a tagged field')")
                for field in known:
                    what = f"{shape.name}.{field.name}"
                    with source.block(f"if {tag} == {field.tag}:"):
                        self.read_tagged(field, f"{target}.{field.name}", what)
                        self.flush()
                        with source.block(f"if p != {stop}:"):
                            source.line(f"raise wrong_size({what!r})")
                source.line(f"p = {stop}")


_tables: dict[str, tuple[Callable[..., Any], ...]] = {}


def _unpackers(code: str) -> tuple[Callable[..., Any], ...]:
    """Readers of short arrays, by their count."""
    table = _tables.get(code)
    if table is None:
        table = _tables[code] = tuple(struct_of(f"{count}{code}").unpack_from for count in range(_SHORT_ARRAY))
    return table
