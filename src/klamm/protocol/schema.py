"""How a wire message is declared: one dataclass per message, with the versions of every field.

    @struct
    class MemberIdentity:
        \"\"\"A member that leaves.\"\"\"

        member_id: str = wire(string)
        group_instance_id: str | None = wire(string, nullable=0, default=None)


    @message(api_key=13, versions=(0, 5), flexible=4)
    class LeaveGroupRequest:
        \"\"\"Leave a group without waiting for the session to end.\"\"\"

        group_id: str = wire(string)
        member_id: str = wire(string, until=2)
        members: list[MemberIdentity] = wire(array(MemberIdentity), since=3)

Fields stand in wire order. Every field has a default, Kafka's own, so a message is made from only the fields that
matter. A field outside its versions keeps its default when read and is left out when written. Classes become slotted,
keyword-only dataclasses; `klamm.protocol.codec` turns the declarations into readers and writers.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

C = TypeVar("C", bound=type[Any])

LAST_VERSION = 32767
"""Stands for "and every later version"; versions are int16 on the wire."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value of fixed width. `code` reads it and `pack_code` writes it, both in `struct`'s letters."""

    name: str
    code: str
    pack_code: str
    size: int
    default: Any


@dataclass(frozen=True, slots=True)
class Sized:
    """A value that carries its own length: text, bytes, or record batches."""

    name: str
    default: Any


@dataclass(frozen=True, slots=True)
class Array:
    """Any number of one kind of value."""

    element: "WireType"


WireType = Scalar | Sized | Array | type[Any]
"""What a field holds; a class is one made by `@struct`."""

boolean = Scalar("boolean", "?", "b", 1, default=False)
int8 = Scalar("int8", "b", "b", 1, default=0)
int16 = Scalar("int16", "h", "h", 2, default=0)
uint16 = Scalar("uint16", "H", "H", 2, default=0)
int32 = Scalar("int32", "i", "i", 4, default=0)
uint32 = Scalar("uint32", "I", "I", 4, default=0)
int64 = Scalar("int64", "q", "q", 8, default=0)
float64 = Scalar("float64", "d", "d", 8, default=0.0)
uuid = Scalar("uuid", "16s", "16s", 16, default=bytes(16))
string = Sized("string", "")
blob = Sized("blob", b"")
records = Sized("records", None)
"""Record batches, read as a memoryview of the request's own buffer: nothing is copied."""

Records = Any
"""What a `records` field holds: a memoryview or None when read; to be written, anything that has a length."""


def array(element: WireType) -> Array:
    """A list of `element`."""
    return Array(element)


@dataclass(frozen=True, slots=True)
class WireField:
    """When and how one field travels."""

    name: str
    type: WireType
    since: int
    until: int
    nullable_since: int
    tag: int | None
    default: Any
    """The default itself; for a list or a struct the class that makes one."""

    def lives_in(self, version: int) -> bool:
        """Whether messages of `version` have the field."""
        return self.since <= version <= self.until

    def nullable_in(self, version: int) -> bool:
        """Whether messages of `version` may carry null here."""
        return version >= self.nullable_since

    def make_default(self) -> Any:
        """The value of a field that was not set; a new object where it is mutable."""
        return self.default() if callable(self.default) else self.default


@dataclass(frozen=True, slots=True)
class Declaration:
    """The declaration of a message class, stored as `__wire__` on it."""

    name: str
    fields: tuple[WireField, ...]
    api_key: int = -1
    versions: tuple[int, int] = (0, LAST_VERSION)
    flexible_since: int = LAST_VERSION + 1

    def flexible_in(self, version: int) -> bool:
        """Whether `version` uses compact lengths and tagged fields (KIP-482)."""
        return version >= self.flexible_since


def wire(
    type: WireType,
    *,
    since: int = 0,
    until: int = LAST_VERSION,
    nullable: int | None = None,
    tag: int | None = None,
    default: Any = MISSING,
) -> Any:
    """Declare a field: present from `since` to `until`, nullable from `nullable` on, tagged when it has a `tag`.

    Without a `default` it is the type's zero: 0, "", b"", an empty list, a struct of defaults.
    """
    if default is MISSING:
        default = _zero(type)
    nullable_since = LAST_VERSION + 1 if nullable is None else nullable
    declared = WireField("", type, since, until, nullable_since, tag, default)
    if callable(default):
        return field(default_factory=default, metadata={"wire": declared})
    return field(default=default, metadata={"wire": declared})


def _zero(type: WireType) -> Any:
    if isinstance(type, Scalar | Sized):
        return type.default
    return list if isinstance(type, Array) else type


def _declare(cls: C, **facts: Any) -> C:
    # A node imports hundreds of these classes and makes instances of few: methods are shared or made on first use,
    # which takes two thirds off the time of import.
    cls.__init__ = _first_init
    cls.__eq__ = _equal  # type: ignore[assignment]
    cls.__repr__ = _represent  # type: ignore[assignment]
    made: Any = dataclass(slots=True, kw_only=True, init=False, eq=False, repr=False, match_args=False)(cls)
    made.__hash__ = None
    declared = []
    for member in fields(made):
        # `wire` runs before the class exists and has no name. Not by `dataclasses.replace`: thousands of fields are
        # declared while a node starts, and it takes several times as long.
        bare: WireField = member.metadata["wire"]
        declared.append(
            WireField(member.name, bare.type, bare.since, bare.until, bare.nullable_since, bare.tag, bare.default)
        )
    made.__wire__ = Declaration(made.__name__, tuple(declared), **facts)
    return made  # type: ignore[no-any-return]


_ABSENT: Any = object()


def _first_init(self: Any, **values: Any) -> None:
    """Make the class's own constructor, put it in this one's place, and go on with it."""
    parameters, body, names = [], [], {"_ABSENT": _ABSENT}
    for declared in self.__wire__.fields:
        name = declared.name
        names[f"_{name}"] = declared.default
        if callable(declared.default):
            parameters.append(f"{name}=_ABSENT")
            body.append(f"    self.{name} = _{name}() if {name} is _ABSENT else {name}\n")
        else:
            parameters.append(f"{name}=_{name}")
            body.append(f"    self.{name} = {name}\n")
    star = "*, " if parameters else ""
    source = f"def __init__(self, {star}{', '.join(parameters)}):\n{''.join(body) or '    pass'}"
    exec(source, names)  # noqa: S102 - made from our own declarations
    init: Any = names["__init__"]
    type(self).__init__ = init
    init(self, **values)


def _equal(self: Any, other: object) -> Any:
    if type(other) is not type(self):
        return NotImplemented
    names = (declared.name for declared in declaration(type(self)).fields)
    return all(getattr(self, name) == getattr(other, name) for name in names)


def _represent(self: Any) -> str:
    names = (declared.name for declared in self.__wire__.fields)
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in names)
    return f"{type(self).__name__}({values})"


# `wire` is not named as a field specifier on purpose: a type checker then takes it for a default, and every field
# may be left out of the constructor, as it may at run time.
@dataclass_transform(kw_only_default=True)
def struct(cls: C) -> C:
    """Make a class a part of messages; which versions are flexible is decided by the message it stands in."""
    return _declare(cls)


@dataclass_transform(kw_only_default=True)
def message(*, api_key: int = -1, versions: tuple[int, int], flexible: int | None = None) -> Callable[[C], C]:
    """Make a class a message with its own key, its valid versions and the first flexible one (None: none is)."""

    def make(cls: C) -> C:
        since = LAST_VERSION + 1 if flexible is None else flexible
        return _declare(cls, api_key=api_key, versions=versions, flexible_since=since)

    return make


def declaration(cls: type[Any]) -> Declaration:
    """The declaration of a class made by `@message` or `@struct`."""
    declared: Declaration = cls.__wire__
    return declared
