"""Compile a writer: straight-line Python for one class in one version.

Neighbouring values of fixed width go out by one `pack`, together with the length that follows them where it has a
fixed width too. The code appends its pieces with `a`; the caller joins them or sends them one by one.

A sliced writer is a generator of the same code that yields every SLICE_ELEMENTS elements, as a sliced reader does.
"""

import struct
from collections.abc import Callable, Generator
from typing import Any, Final

from klamm.model.errors import LocalProtocolError
from klamm.protocol.schema import Array, Scalar, Sized, WireField, WireType, declaration
from klamm.protocol.source import FunctionSource, body_fields, struct_of, tagged_fields
from klamm.protocol.varint import SMALL, encode_uvarint

Writer = Callable[[Any, Callable[[Any], None]], None]
SlicedWriter = Callable[[Any, Callable[[Any], None]], Generator[None, None, None]]

STRING_BYTES_MAX = 32767
_SHORT_ARRAY = 16


def compile_writer(cls: type[Any], version: int) -> Writer:
    """A function `(message, append)` that appends the message's bytes."""
    return _WriterCompiler(cls, version).compile()


def compile_sliced_writer(cls: type[Any], version: int) -> SlicedWriter:
    """The same as a generator that yields between slices."""
    return _WriterCompiler(cls, version, sliced=True).compile()


ERROR_CHARS_MAX: Final = STRING_BYTES_MAX // 4
"""Of an error message: it may quote a name that takes all bytes a text can have."""


def cut_error(text: str | None) -> str | None:
    """The text of an error, cut to what a message can hold in any case."""
    return text if text is None or len(text) <= ERROR_CHARS_MAX else f"{text[: ERROR_CHARS_MAX - 3]}..."


def long_string(length: int) -> bytes:
    """The length of a text too long for the table of small numbers, one added as flexible versions do."""
    if length > STRING_BYTES_MAX + 1:
        raise LocalProtocolError(f"text of {length - 1} bytes is longer than {STRING_BYTES_MAX}")
    return encode_uvarint(length)


class _WriterCompiler:
    def __init__(self, cls: type[Any], version: int, *, sliced: bool = False) -> None:
        self.cls = cls
        self.sliced = sliced
        self.version = version
        self.flexible = declaration(cls).flexible_in(version)
        self.source = FunctionSource("write(m, a)")
        self.append = "a"
        self.pending: list[tuple[str, str]] = []  # expressions and their struct letters, not yet written out
        self.source.scope.update(
            small=SMALL,
            uvarint=encode_uvarint,
            long_string=long_string,
            cut_error=cut_error,
            pack=struct.pack,
            join=b"".join,
        )

    def compile(self) -> Callable[..., Any]:
        if self.sliced:
            self.source.line("work = 0")
        self.write_struct(self.cls, "m")
        self.flush()
        if self.sliced:
            self.source.line("yield")  # a message without arrays, too, is written by a generator
        self.source.line("return None")
        return self.source.compile("write", f"<writer of {self.cls.__name__} v{self.version}>")

    def flush(self) -> None:
        """Write out the pending fixed-width values as one pack."""
        if not self.pending:
            return
        values = [value for value, _ in self.pending if value]
        codes = "".join(code for _, code in self.pending)
        self.pending.clear()
        # Pad bytes alone are a constant.
        if not values:
            self.source.line(f"{self.append}({bytes(struct_of(codes).size)!r})")
            return
        pack = struct_of(codes).pack
        name = self.source.use(pack, "pack")
        self.source.line(f"{self.append}({name}({', '.join(values)}))")

    def write_struct(self, cls: type[Any], value: str) -> None:
        shape = declaration(cls)
        for field in body_fields(shape, self.version):
            text = f"{value}.{field.name}"
            if field.name.endswith("error_message"):
                text = f"cut_error({text})"
            self.write_value(field.type, text, nullable=field.nullable_in(self.version))
        if self.flexible:
            self.write_tags(tagged_fields(shape, self.version), value)

    def write_value(self, type: WireType, value: str, *, nullable: bool = False) -> None:
        if isinstance(type, Scalar):
            self.pending.append((value, type.pack_code))
            return
        if not isinstance(type, Sized | Array) and not nullable:
            self.write_struct(type, value)
            return
        held = self.source.fresh("v")
        if not nullable:
            self.source.line(f"{held} = {value}")
            self.write_present(type, held)
            return
        self.flush()
        self.source.line(f"{held} = {value}")
        with self.source.block(f"if {held} is None:"):
            self.source.line(f"{self.append}({self.null_of(type)!r})")
        with self.source.block("else:"):
            if not isinstance(type, Sized | Array):
                self.pending.append(("1", "b"))
            self.write_present(type, held)
            self.flush()

    def null_of(self, type: WireType) -> bytes:
        match type:
            case Sized(name="string"):
                return b"\0" if self.flexible else b"\xff\xff"
            case Sized() | Array():
                return b"\0" if self.flexible else b"\xff\xff\xff\xff"
            case _:
                return b"\xff"

    def write_present(self, type: WireType, held: str) -> None:
        match type:
            case Sized():
                self.write_sized(type, held)
            case Array():
                self.write_array(type.element, held)
            case Scalar():
                self.pending.append((held, type.pack_code))
            case _:
                self.write_struct(type, held)

    def write_sized(self, type: Sized, held: str) -> None:
        source = self.source
        if type.name == "string":
            source.line(f"{held} = {held}.encode()")
        if self.flexible:
            self.flush()
            length = source.fresh("n")
            source.line(f"{length} = len({held}) + 1")
            slow = "long_string" if type.name == "string" else "uvarint"
            source.line(f"{self.append}(small[{length}] if {length} < {len(SMALL)} else {slow}({length}))")
        else:
            self.pending.append((f"len({held})", "h" if type.name == "string" else "i"))
            self.flush()
        source.line(f"{self.append}({held})")

    def write_array(self, element: WireType, held: str) -> None:
        source = self.source
        if isinstance(element, Scalar):
            self.flush()
            self.write_scalars(element, held)
            return
        if self.flexible:
            self.flush()
            length = source.fresh("n")
            source.line(f"{length} = len({held}) + 1")
            source.line(f"{self.append}(small[{length}] if {length} < {len(SMALL)} else uvarint({length}))")
        else:
            self.pending.append((f"len({held})", "i"))
            self.flush()
        item = source.fresh("i")
        with source.block(f"for {item} in {held}:"):
            self.write_value(element, item)
            self.flush()
            if self.sliced:
                source.yield_after_slice()
            # An element without fields leaves the loop without a body.
            source.line("pass")

    def write_scalars(self, element: Scalar, held: str) -> None:
        source = self.source
        count = source.fresh("n")
        prefix = "B" if self.flexible else "i"
        table = source.use(_packers(prefix, element.pack_code), "packs")
        source.line(f"{count} = len({held})")
        with source.block(f"if {count} < {_SHORT_ARRAY}:"):
            stored = f"{count} + 1" if self.flexible else count
            source.line(f"{self.append}({table}[{count}]({stored}, *{held}))")
        with source.block("else:"):
            codes = source.use(element.pack_code, "code")
            stored = f"uvarint({count} + 1)" if self.flexible else f'pack(">i", {count})'
            source.line(f"{self.append}({stored})")
            source.line(f'{self.append}(pack(">" + {codes} * {count}, *{held}))')

    def write_tags(self, known: list[WireField], value: str) -> None:
        if not known:
            # A pad byte is written as 0 and takes no value: no tagged fields.
            self.pending.append(("", "x"))
            return
        self.flush()
        source = self.source
        present = []
        for field in known:
            flag = source.fresh("f")
            source.line(f"{flag} = {self.differs(field, f'{value}.{field.name}')}")
            present.append(flag)
        with source.block(f"if {' or '.join(present)}:"):
            source.line(f"{self.append}(small[{' + '.join(present)}])")
            for field, flag in zip(known, present, strict=True):
                with source.block(f"if {flag}:"):
                    self.write_tag(field, f"{value}.{field.name}")
        with source.block("else:"):
            source.line(f"{self.append}({bytes(1)!r})")

    def differs(self, field: WireField, value: str) -> str:
        """An expression for whether a tagged field is set, always a bool."""
        if field.default is list:
            return f"{value} != []"
        if callable(field.default):
            return f"{value} != {self.source.use(field.default(), 'unset')}"
        if field.default is None:
            if isinstance(field.type, type) and not field.nullable_in(self.version):
                unset = self.source.use(field.type(), "unset")
                return f"{value} is not None and {value} != {unset}"
            return f"{value} is not None"
        return f"{value} != {field.default!r}"

    def write_tagged_struct(self, cls: type[Any], value: str) -> None:
        """A struct that may be null, inside of a tagged field: null is 0 there, and not -1."""
        self.flush()
        with self.source.block(f"if {value} is None:"):
            self.source.line(f"{self.append}({bytes(1)!r})")
        with self.source.block("else:"):
            self.pending.append(("1", "b"))
            self.write_struct(cls, value)
            self.flush()

    def write_tag(self, field: WireField, value: str) -> None:
        source = self.source
        # A tagged field is written aside first, because its size precedes it.
        pieces, outer = source.fresh("t"), self.append
        source.line(f"{pieces} = []")
        self.append = f"{pieces}.append"
        if field.nullable_in(self.version) and not isinstance(field.type, Scalar | Sized | Array):
            self.write_tagged_struct(field.type, value)
        else:
            self.write_value(field.type, value, nullable=field.nullable_in(self.version))
        self.flush()
        self.append = outer
        source.line(f"{pieces} = join({pieces})")
        assert field.tag is not None
        source.line(f"{self.append}({encode_uvarint(field.tag)!r} + uvarint(len({pieces})) + {pieces})")


_tables: dict[tuple[str, str], tuple[Callable[..., Any], ...]] = {}


def _packers(prefix: str, code: str) -> tuple[Callable[..., Any], ...]:
    """Writers of short arrays with their count, by the count."""
    table = _tables.get((prefix, code))
    if table is None:
        table = _tables[prefix, code] = tuple(struct_of(prefix + code * count).pack for count in range(_SHORT_ARRAY))
    return table
