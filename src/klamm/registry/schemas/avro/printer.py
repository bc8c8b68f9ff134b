"""Avro types as JSON text, in the order and with the names that the Java libraries print.

Canonical (Avro's own library; a namespace is printed where it differs from the enclosing one):

    record, error   type name namespace doc fields PROPERTIES aliases
    enum            type name namespace doc symbols default PROPERTIES aliases
    fixed           type name namespace doc size PROPERTIES aliases
    field           name type doc default order aliases PROPERTIES

Normalized (Confluent's client; full names, properties and aliases sorted):

    record, error   name type fields doc aliases PROPERTIES
    enum            name type symbols doc aliases default PROPERTIES
    fixed           name type size doc aliases PROPERTIES
    field           name type order doc aliases default PROPERTIES

An array or map has type, items or values, PROPERTIES; a primitive is its name, or an object if it has properties.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from klamm.registry.schemas.avro.nodes import PRIMITIVES, AvroField, AvroType
from klamm.registry.schemas.parsed import dump_json, sort_keys

_LOGICAL = ("logicalType", "precision", "scale")


def print_avro(avro_type: AvroType, external: Iterable[str]) -> str:
    """Return the canonical text of a type; types with an external name are references and not written out."""
    return dump_json(_CanonicalPrinter(external).convert(avro_type, ""))


def print_normalized(avro_type: AvroType, external: Iterable[str]) -> str:
    """Return the normalized text of a type."""
    return dump_json(_NormalizedPrinter(external).convert(avro_type, ""))


class _CanonicalPrinter:
    def __init__(self, external: Iterable[str]) -> None:
        self._printed = set(external)

    def convert(self, avro_type: AvroType, namespace: str) -> Any:
        kind = avro_type.kind
        if kind == "union":
            return [self.convert(branch, namespace) for branch in avro_type.branches]
        if kind in PRIMITIVES:
            return {"type": kind, **self.properties(avro_type.properties)} if avro_type.properties else kind
        if avro_type.items is not None:
            part = "items" if kind == "array" else "values"
            inner = self.convert(avro_type.items, namespace)
            return {"type": kind, part: inner, **self.properties(avro_type.properties)}
        if avro_type.name in self._printed:
            return self.refer(avro_type.name, namespace)
        self._printed.add(avro_type.name)
        return self.convert_named(avro_type, namespace)

    def properties(self, properties: dict[str, Any]) -> dict[str, Any]:
        return properties

    def refer(self, name: str, namespace: str) -> str:
        return _shorten_name(name, namespace)

    def convert_named(self, avro_type: AvroType, namespace: str) -> dict[str, Any]:
        space = avro_type.namespace
        document: dict[str, Any] = {"type": avro_type.kind, "name": avro_type.short_name}
        if space != namespace:
            document["namespace"] = space
        if avro_type.doc is not None:
            document["doc"] = avro_type.doc
        document |= self.convert_content(avro_type)
        if avro_type.symbol_default is not None:
            document["default"] = avro_type.symbol_default
        document |= avro_type.properties
        if avro_type.aliases:
            document["aliases"] = [_shorten_name(alias, space) for alias in avro_type.aliases]
        return document

    def convert_content(self, avro_type: AvroType) -> dict[str, Any]:
        match avro_type.kind:
            case "enum":
                return {"symbols": avro_type.symbols}
            case "fixed":
                return {"size": avro_type.size}
        return {"fields": [self.convert_field(item, avro_type.namespace) for item in avro_type.fields]}

    def convert_field(self, item: AvroField, namespace: str) -> dict[str, Any]:
        document: dict[str, Any] = {"name": item.name, "type": self.convert(item.type, namespace)}
        if item.doc is not None:
            document["doc"] = item.doc
        if item.has_default:
            document["default"] = item.default
        if item.order != "ascending":
            document["order"] = item.order
        if item.aliases:
            document["aliases"] = item.aliases
        return document | item.properties


class _NormalizedPrinter(_CanonicalPrinter):
    def properties(self, properties: dict[str, Any]) -> dict[str, Any]:
        first = [name for name in _LOGICAL if name in properties] if "logicalType" in properties else []
        return {**{name: properties[name] for name in first}, **sort_keys(properties)}

    def refer(self, name: str, namespace: str) -> str:
        del namespace
        return name

    def convert_named(self, avro_type: AvroType, namespace: str) -> dict[str, Any]:
        document: dict[str, Any] = {"name": avro_type.name}
        if namespace and not avro_type.namespace:
            # A name without dots would be taken for one of the enclosing namespace.
            document["namespace"] = ""
        document |= {"type": avro_type.kind, **self.convert_content(avro_type)}
        if avro_type.doc:
            document["doc"] = avro_type.doc
        if avro_type.aliases:
            document["aliases"] = sorted(avro_type.aliases)
        if avro_type.symbol_default is not None:
            document["default"] = avro_type.symbol_default
        return document | self.properties(avro_type.properties)

    def convert_field(self, item: AvroField, namespace: str) -> dict[str, Any]:
        document: dict[str, Any] = {
            "name": item.name,
            "type": self.convert(item.type, namespace),
            "order": item.order.upper(),
        }
        if item.doc is not None:
            document["doc"] = item.doc
        if item.aliases:
            document["aliases"] = sorted(item.aliases)
        if item.has_default:
            document["default"] = sort_keys(item.default)
        document.update(sort_keys(item.properties))
        return document


def _shorten_name(name: str, namespace: str) -> str:
    space, _, short = name.rpartition(".")
    return short if space == namespace else name
