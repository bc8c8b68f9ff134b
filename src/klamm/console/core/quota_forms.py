"""Quotas of a form: whose they are, and their limits with units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from klamm.client.admin.acl_types import QuotaEntity
from klamm.model.units import format_size, parse_size_bytes

KINDS: Final = {"user": "User", "client-id": "Client id", "ip": "Address"}
DEFAULT: Final = "<default>"
"""How the form names all entities of a kind without a quota of their own, as Kafka's tools do."""
_SIZES: Final = ("producer_byte_rate", "consumer_byte_rate")
KEYS: Final = (*_SIZES, "request_percentage", "controller_mutation_rate", "connection_creation_rate")


def parse_entity(names: Mapping[str, str]) -> QuotaEntity:
    """Return the entity of the fields that are filled; ValueError when none is, or one has a prefix."""
    parts: list[tuple[str, str | None]] = []
    for kind in KINDS:
        name = names.get(kind, "").strip()
        if not name:
            continue
        if kind == "user" and name.startswith("User:"):
            raise ValueError(f"the name of a user is without User: here; write {name[5:]}")
        parts.append((kind, None if name == DEFAULT else name))
    if not parts:
        raise ValueError("name whose quota it is: a user, a client id or an address")
    return tuple(sorted(parts))


def parse_limit(key: str, text: str) -> float:
    """Return a limit: bytes per second with units, or a number; ValueError says what is wrong."""
    if key not in KEYS:
        raise ValueError(f"there is no quota {key!r}; there are {', '.join(KEYS)}")
    if key in _SIZES:
        return float(parse_size_bytes(text.removesuffix("/s")))
    try:
        limit = float(text)
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise ValueError(f"{text!r} is no number")
    return limit


def format_limit(key: str, limit: float) -> str:
    """Return a limit with its unit."""
    return f"{format_size(limit)}/s" if key in _SIZES else f"{limit:g}"


def describe_entity(entity: QuotaEntity) -> str:
    """Return an entity as text."""
    return ", ".join(f"{kind} {'default' if name is None else name}" for kind, name in entity)


def entity_fields(entity: QuotaEntity) -> dict[str, str]:
    """Return the fields of the form that name an entity."""
    return {kind: DEFAULT if name is None else name for kind, name in entity}
