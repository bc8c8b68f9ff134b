"""Builder of Python source, shared by the reader and writer compilers."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any

from klamm.protocol.schema import Array, Declaration, Scalar, Sized, WireField, WireType, declaration

SLICE_ELEMENTS = 500
"""Elements read or written before a sliced reader or writer yields: about a millisecond."""


class FunctionSource:
    """Lines of one function and the names it uses, ready to be compiled.

    `use` hands a Python object to the code under a name of its own; `fresh` makes a local name that nothing else has.
    """

    def __init__(self, signature: str) -> None:
        self._lines = [f"def {signature}:"]
        self._depth = 1
        self._count = 0
        self._names: dict[int, str] = {}
        self.scope: dict[str, Any] = {}

    def line(self, text: str) -> None:
        """Add a line at the present depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Indent what is added inside under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def yield_after_slice(self) -> None:
        """Count one element in `work`, and yield when a slice of them is done."""
        self.line("work += 1")
        with self.block(f"if work == {SLICE_ELEMENTS}:"):
            self.line("work = 0")
            self.line("yield")

    def fresh(self, stem: str) -> str:
        """A local name not used before."""
        self._count += 1
        return f"{stem}{self._count}"

    def use(self, value: Any, stem: str = "k") -> str:
        """The name under which the code sees `value`."""
        # By identity, since values need not be hashable; the scope keeps each alive, so that no id is used twice.
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{stem}_{len(self._names)}"
            self.scope[name] = value
        return name

    def compile(self, name: str, filename: str) -> Callable[..., Any]:
        """The function itself."""
        code = compile("\n".join(self._lines), filename, "exec")
        exec(code, self.scope)  # noqa: S102 - the source is made of our own declarations only
        function: Callable[..., Any] = self.scope[name]
        return function


@cache
def struct_of(codes: str) -> struct.Struct:
    """The big-endian struct of some format letters; one object for all code that needs it."""
    return struct.Struct(">" + codes)


def default_source(source: FunctionSource, field: WireField) -> str:
    """An expression that makes the default of a field."""
    if field.default is list:
        return "[]"
    if callable(field.default):
        return f"{source.use(field.default, 'make')}()"
    return repr(field.default)


def body_fields(shape: Declaration, version: int) -> list[WireField]:
    """The fields that a version always carries, in wire order."""
    return [field for field in shape.fields if field.tag is None and field.lives_in(version)]


def tagged_fields(shape: Declaration, version: int) -> list[WireField]:
    """The fields that a version carries only when they are set, by tag."""
    tagged = [field for field in shape.fields if field.tag is not None and field.lives_in(version)]
    return sorted(tagged, key=attrgetter("tag"))


def smallest(type: WireType, version: int, *, flexible: bool, nullable: bool = False) -> int:
    """The fewest bytes a value can take: what a declared count is held against."""
    match type:
        case Scalar():
            return type.size
        case Sized(name="string"):
            return 1 if flexible else 2
        case Sized() | Array():
            return 1 if flexible else 4
        case _ if nullable:
            return 1
        case _:
            shape = declaration(type)
            sizes = (
                smallest(field.type, version, flexible=flexible, nullable=field.nullable_in(version))
                for field in body_fields(shape, version)
            )
            # A flexible struct ends with the number of its tagged fields, a byte at least.
            return sum(sizes) + flexible
