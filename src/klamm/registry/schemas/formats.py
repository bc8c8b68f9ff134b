"""Schema types by name, and what the registry asks of any of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from klamm.registry.schemas.avro import AvroSchema
from klamm.registry.schemas.comparison import CompatibilityLevel, CompatibilityPolicy, Incompatibility
from klamm.registry.schemas.json_schema import JsonSchema
from klamm.registry.schemas.parsed import InvalidSchemaError, ParsedSchema
from klamm.registry.schemas.protobuf import ProtobufSchema
from klamm.registry.schemas.protobuf.symbols import reduce_names

_PARSERS = {"JSON": JsonSchema.parse, "PROTOBUF": ProtobufSchema.parse, "AVRO": AvroSchema.parse}

SCHEMA_TYPES = tuple(_PARSERS)
"""In the order of `GET /schemas/types`."""


def parse_schema(schema_type: str, text: str, references: Mapping[str, ParsedSchema], *, is_new: bool) -> ParsedSchema:
    """Parse a schema; raise InvalidSchemaError if it breaks a rule of its format.

    A schema that is stored already (`is_new=False`) is read more tolerantly: it was accepted once.
    """
    parser = _PARSERS.get(schema_type)
    if parser is None:
        raise InvalidSchemaError(f"schema type {schema_type} is none of {', '.join(SCHEMA_TYPES)}")
    try:
        return parser(text, references, is_new=is_new)
    except RecursionError:
        raise InvalidSchemaError("nested too deeply") from None


def reduce_spelling(schema_type: str, text: str) -> str | None:
    """Return a text that is equal for all spellings of a schema, and rarely for others; None if there is only one."""
    return reduce_names(text) if schema_type == ProtobufSchema.schema_type else None


def check_compatibility(
    new: ParsedSchema, old: ParsedSchema, level: str, policy: str = CompatibilityPolicy.STRICT
) -> list[Incompatibility]:
    """Return the rules that a change breaks; an empty list if it is compatible.

    The transitive levels mean the same for a pair; the caller chooses the pairs.
    """
    is_backward, is_forward = _find_directions(level)
    if not (is_backward or is_forward):
        return []
    if type(new) is not type(old):
        message = f"The schema type changed from {old.schema_type} to {new.schema_type}"
        return [Incompatibility("TYPE_MISMATCH", "/", message)]
    incompatibilities: list[Incompatibility] = []
    strictness = _find_policy(policy)
    if is_backward:
        incompatibilities += new.check_reads(old, strictness)
    if is_forward:
        incompatibilities += old.check_reads(new, strictness)
    return list(dict.fromkeys(incompatibilities)) if incompatibilities else incompatibilities


# Cached: a check with a hundred small versions spends a fifth of its time on enums otherwise.
@cache
def _find_directions(level: str) -> tuple[bool, bool]:
    member = CompatibilityLevel(level)
    return member.is_backward, member.is_forward


_find_policy = cache(CompatibilityPolicy)
