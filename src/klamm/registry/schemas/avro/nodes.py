"""Avro's JSON as a graph of types: names resolved, rules of the specification checked.

fastavro also parses schemas, but drops what has to be stored (how names and namespaces were written, properties of its
own reserved list) and checks defaults that Java's parser takes. It is the oracle of the tests instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from klamm.registry.schemas.parsed import InvalidSchemaError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TYPE_ATTRIBUTES = {
    "type", "name", "namespace", "doc", "aliases", "fields", "symbols", "size", "items", "values",
}  # fmt: skip
_FIELD_ATTRIBUTES = {"name", "type", "doc", "default", "order", "aliases"}
_ORDERS = ("ascending", "descending", "ignore")
# Sizes of Avro's two integer types.
_INTEGERS = {"int": 1 << 31, "long": 1 << 63}


@dataclass(slots=True, eq=False)
class AvroType:
    """A type; named types that are used twice are one object."""

    kind: str
    name: str = ""
    """The full name of a record, enum or fixed."""
    doc: str | None = None
    aliases: list[str] = field(default_factory=list)
    """Full names."""
    fields: list[AvroField] = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    symbol_default: str | None = None
    size: int = 0
    items: AvroType | None = None
    """Of an array; the values of a map."""
    branches: list[AvroType] = field(default_factory=list)
    properties: dict[str, Any] = field(default_factory=dict)
    """What the specification does not define, and logical types."""

    @property
    def namespace(self) -> str:
        """The part of the full name before the last dot."""
        return self.name.rpartition(".")[0]

    @property
    def short_name(self) -> str:
        """The part of the full name after the last dot."""
        return self.name.rpartition(".")[2]


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    doc: str | None
    has_default: bool
    default: Any
    order: str
    aliases: list[str]
    properties: dict[str, Any]


# One object each, so that a pair of them is compared once.
_PLAIN = {kind: AvroType(kind) for kind in PRIMITIVES}


class AvroParser:
    """Parses one schema; types of references are known from the start."""

    def __init__(self, known: Mapping[str, AvroType], *, is_new: bool) -> None:
        self.names = dict(known)
        """All named types by full name."""
        self._is_new = is_new
        # Checked at the end: a default may be of a type that is not complete yet.
        self._defaults: list[tuple[AvroType, AvroField]] = []

    def parse(self, document: Any) -> AvroType:
        """Return the type that a JSON document declares."""
        parsed = self._parse_type(document, "")
        if self._is_new:
            for record, item in self._defaults:
                if not _fits(item.default, item.type, frozenset()):
                    _refuse(f"field {item.name} of {record.name}: default {item.default!r} does not fit its type")
        return parsed

    def _parse_type(self, document: Any, namespace: str) -> AvroType:
        if isinstance(document, str):
            return self._find(document, namespace)
        if isinstance(document, list):
            return self._parse_union(document, namespace)
        if not isinstance(document, dict):
            _refuse(f"no type: {document!r}")
        kind = document.get("type")
        if isinstance(kind, (dict, list)) and len(document) == 1:
            return self._parse_type(kind, namespace)
        if not isinstance(kind, str):
            _refuse(f"a type needs the attribute type: {_shorten(document)}")
        if kind in NAMED:
            return self._parse_named(kind, document, namespace)
        if kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            if part not in document:
                _refuse(f"{kind} has no {part}")
            inner = self._parse_type(document[part], namespace)
            return AvroType(kind, items=inner, properties=_other_properties(document, _TYPE_ATTRIBUTES))
        if kind in PRIMITIVES:
            properties = _other_properties(document, _TYPE_ATTRIBUTES)
            return AvroType(kind, properties=properties) if properties else _PLAIN[kind]
        return self._find(kind, namespace)

    def _find(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return _PLAIN[name]
        # A name without dots is of the enclosing namespace, or else of none.
        qualified = _qualify(name, namespace)
        avro_type = self.names.get(qualified) or self.names.get(name)
        if avro_type is None:
            _refuse(f"undefined name: {qualified}")
        return avro_type

    def _parse_union(self, document: list[Any], namespace: str) -> AvroType:
        union = AvroType("union", branches=[self._parse_type(branch, namespace) for branch in document])
        seen = set()
        for branch in union.branches:
            if branch.kind == "union":
                _refuse("a union contains a union")
            key = branch.name or branch.kind
            if key in seen:
                _refuse(f"duplicate in union: {key}")
            seen.add(key)
        return union

    def _parse_named(self, kind: str, document: dict[str, Any], namespace: str) -> AvroType:
        name = document.get("name")
        if not isinstance(name, str) or not name:
            _refuse(f"{kind} has no name")
        space = document.get("namespace")
        # An empty namespace is a namespace: the null one.
        full_name = _qualify(name, space if isinstance(space, str) else namespace)
        self._check_name(full_name)
        if full_name in self.names:
            _refuse(f"{full_name} is defined twice")
        if full_name in PRIMITIVES:
            _refuse(f"{full_name} is the name of a primitive type")
        parsed = AvroType(kind, full_name, doc=_text(document.get("doc")))
        parsed.aliases = [_qualify(alias, parsed.namespace) for alias in _names_of(document.get("aliases"))]
        # Before its parts, which may refer to it.
        self.names[full_name] = parsed
        match kind:
            case "enum":
                self._parse_symbols(parsed, document)
            case "fixed":
                size = document.get("size")
                if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                    _refuse(f"fixed {full_name} has no valid size")
                parsed.size = size
            case _:
                self._parse_fields(parsed, document)
        reserved = _TYPE_ATTRIBUTES | {"default"} if kind == "enum" else _TYPE_ATTRIBUTES
        parsed.properties = _other_properties(document, reserved)
        return parsed

    def _parse_symbols(self, parsed: AvroType, document: dict[str, Any]) -> None:
        symbols = document.get("symbols")
        if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
            _refuse(f"enum {parsed.name} has no symbols")
        for symbol in symbols:
            self._check_name(symbol)
        if len(set(symbols)) < len(symbols):
            _refuse(f"enum {parsed.name} has a symbol twice")
        parsed.symbols = symbols
        default = document.get("default")
        if default is not None and default not in symbols:
            _refuse(f"enum {parsed.name}: the default {default!r} is none of its symbols")
        parsed.symbol_default = default

    def _parse_fields(self, parsed: AvroType, document: dict[str, Any]) -> None:
        fields = document.get("fields")
        if not isinstance(fields, list):
            _refuse(f"record {parsed.name} has no fields")
        names = set()
        for entry in fields:
            item = self._parse_field(parsed, entry)
            if item.name in names:
                _refuse(f"record {parsed.name} has field {item.name} twice")
            names.add(item.name)
            parsed.fields.append(item)

    def _parse_field(self, record: AvroType, document: Any) -> AvroField:
        if not isinstance(document, dict):
            _refuse(f"a field of {record.name} is no object: {_shorten(document)}")
        name = document.get("name")
        if not isinstance(name, str) or not name:
            _refuse(f"a field of {record.name} has no name")
        self._check_name(name)
        if "type" not in document:
            _refuse(f"field {name} of {record.name} has no type")
        order = str(document.get("order", "ascending")).lower()
        if order not in _ORDERS:
            _refuse(f"field {name} of {record.name}: order {order!r} is none of {', '.join(_ORDERS)}")
        item = AvroField(
            name,
            self._parse_type(document["type"], record.namespace),
            _text(document.get("doc")),
            "default" in document,
            document.get("default"),
            order,
            _names_of(document.get("aliases")),
            _other_properties(document, _FIELD_ATTRIBUTES),
        )
        if item.has_default:
            self._defaults.append((record, item))
        return item

    def _check_name(self, name: str) -> None:
        # Schemas from the time before names were checked are in topics and have to stay readable.
        if self._is_new and not all(_NAME.fullmatch(part) for part in name.split(".")):
            _refuse(f"{name!r} is no valid name")


def _fits(value: Any, avro_type: AvroType, inside: frozenset[tuple[int, int]]) -> bool:
    """Whether a JSON value is a default of a type. A union takes any of its branches (Avro 1.12)."""
    kind = avro_type.kind
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "int" | "long":
            limit = _INTEGERS[kind]
            return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        case "float" | "double":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        # Java's parser does not compare the text with the symbols or with the size.
        case "string" | "bytes" | "enum" | "fixed":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list) and all(_fits(item, _inner(avro_type), inside) for item in value)
        case "map":
            return isinstance(value, dict) and all(_fits(item, _inner(avro_type), inside) for item in value.values())
        case "union":
            return any(_fits(value, branch, inside) for branch in avro_type.branches)
    # A record whose default contains itself by its fields' defaults would never end.
    key = (id(avro_type), id(value))
    if not isinstance(value, dict) or key in inside:
        return False
    inside |= {key}
    return all(
        _fits(value[item.name], item.type, inside)
        if item.name in value
        else item.has_default and _fits(item.default, item.type, inside)
        for item in avro_type.fields
    )


def _inner(avro_type: AvroType) -> AvroType:
    assert avro_type.items is not None, "arrays and maps have items"
    return avro_type.items


def _qualify(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name.removeprefix(".")


def _names_of(value: Any) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        _refuse(f"aliases are a list of names, not {_shorten(value)}")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _other_properties(document: dict[str, Any], reserved: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in reserved}


def _shorten(document: Any) -> str:
    text = repr(document)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _refuse(message: str) -> NoReturn:
    raise InvalidSchemaError(message)
