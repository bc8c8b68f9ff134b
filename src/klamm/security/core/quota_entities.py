"""Entities of client quotas: which quota applies to a client, and which entities and values may be set."""

import ipaddress
import math
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, NoReturn

from klamm.model.errors import ErrorCode, KlammError

USER, CLIENT_ID, IP = "user", "client-id", "ip"
PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_INTEGERS: Final = {
    PRODUCER_BYTE_RATE: ("a LONG", 2**63 - 1),
    CONSUMER_BYTE_RATE: ("a LONG", 2**63 - 1),
    CONNECTION_CREATION_RATE: ("an INT", 2**31 - 1),
}
"""The keys whose values are integers: Kafka's name of the type, its largest value."""
_CLIENT_KEYS: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE})
_IP_KEYS: Final = frozenset({CONNECTION_CREATION_RATE})

EntityParts = tuple[tuple[str, str | None], ...]
"""(type, name) sorted by type; a name of None is the default of its type."""


class AppliedQuota(NamedTuple):
    """The quota of a client, and the clients that share its window."""

    limit: float
    user: str
    """Empty when the quota is one of a client id alone."""
    client_id: str
    """Empty when the quota is one of a user alone."""


def find_quota(
    quotas: Mapping[EntityParts, Mapping[str, float]], user: str, client_id: str, key: str
) -> AppliedQuota | None:
    """Return the quota of a client: the first of Kafka's precedence that sets the key; None without one.

    A default gives every user, or client id, a window of its own.
    """
    # The order of ClientQuotaManager (KIP-55): a user counts more than a client id, a name more than a default.
    for of_user, of_client in (
        ((user,), (client_id,)),
        ((user,), (None,)),
        ((user,), ()),
        ((None,), (client_id,)),
        ((None,), (None,)),
        ((None,), ()),
        ((), (client_id,)),
        ((), (None,)),
    ):
        # "client-id" sorts before "user".
        parts: EntityParts = (*((CLIENT_ID, name) for name in of_client), *((USER, name) for name in of_user))
        limit = quotas.get(parts, {}).get(key)
        if limit is not None:
            return AppliedQuota(limit, user if of_user else "", client_id if of_client else "")
    return None


def read_entity(parts: Iterable[tuple[str, str | None]]) -> EntityParts:
    """Return the entity of a request; KlammError INVALID_REQUEST for one that cannot have quotas."""
    listed = list(parts)
    types = [kind for kind, _ in listed]
    if not listed:
        raise KlammError(ErrorCode.INVALID_REQUEST, "Invalid empty client quota entity")
    for kind, name in listed:
        if kind not in (USER, CLIENT_ID, IP):
            raise KlammError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise KlammError(ErrorCode.INVALID_REQUEST, f"Empty {kind} not supported")
    if len(set(types)) != len(types):
        raise KlammError(ErrorCode.INVALID_REQUEST, "Duplicate client quota entity type")
    if IP in types:
        if len(types) > 1:
            raise KlammError(
                ErrorCode.INVALID_REQUEST,
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId",
            )
        _check_address(listed[0][1])
    return tuple(sorted(listed, key=_entity_type))


def _entity_type(part: tuple[str, str | None]) -> str:
    return part[0]


def _check_address(name: str | None) -> None:
    if name is None:
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"{name} is not a valid IP or resolvable host.") from None


def check_limit(entity: EntityParts, key: str, value: float) -> None:
    """Raise KlammError INVALID_REQUEST for a key that the entity does not have, or a value that it cannot have."""
    # An entity with an address has no other part (KIP-612), so the first one tells.
    keys = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    if key not in keys:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"Invalid configuration key {key}")
    if not 0 < value < math.inf:
        raise KlammError(ErrorCode.INVALID_REQUEST, f"Quota {key} must be greater than 0")
    if key in _INTEGERS:
        type_name, largest = _INTEGERS[key]
        # Values travel as doubles: one beyond the type would be stored, and be another number when it is read.
        if value > largest:
            raise KlammError(ErrorCode.INVALID_REQUEST, f"Proposed value for {key} is too large for {type_name}.")
        if value != int(value):
            raise KlammError(ErrorCode.INVALID_REQUEST, f"{key} cannot be a fractional value.")


_MATCH_EXACT, _MATCH_DEFAULT, _MATCH_SPECIFIED = range(3)


class EntityFilter:
    """The entities that DescribeClientQuotas selects; built from (type, match type, name) of each component.

    KlammError with Kafka's code and text for components that it refuses.
    """

    __slots__ = ("_exact", "_specified", "_strict")

    def __init__(self, components: Iterable[tuple[str, int, str | None]], *, strict: bool) -> None:
        self._exact: dict[str, str | None] = {}
        self._specified: set[str] = set()
        self._strict = strict
        for kind, match_type, name in components:
            self._check_type(kind)
            if match_type == _MATCH_EXACT:
                if name is None:
                    _refuse_filter("Request specified MATCH_TYPE_EXACT, but set match string to null.")
                self._exact[kind] = name
            elif match_type == _MATCH_DEFAULT:
                if name is not None:
                    _refuse_filter("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
                self._exact[kind] = None
            elif match_type == _MATCH_SPECIFIED:
                if name is not None:
                    _refuse_filter("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
                self._specified.add(kind)
            else:
                _refuse_filter(f"Unknown match type {match_type}")
        types = self._exact.keys() | self._specified
        if IP in types and len(types) > 1:
            _refuse_filter(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def _check_type(self, kind: str) -> None:
        if not kind:
            _refuse_filter("Invalid empty entity type.")
        if kind in self._exact or kind in self._specified:
            _refuse_filter(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in (USER, CLIENT_ID, IP):
            # Kafka's code: a newer client may filter by types that this broker does not know.
            raise KlammError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")

    def matches(self, entity: EntityParts) -> bool:
        """Whether an entity has all components; with `strict`, no others."""
        if self._strict and len(entity) != len(self._exact) + len(self._specified):
            return False
        parts = dict(entity)
        return self._specified <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in self._exact.items()
        )


def _refuse_filter(text: str) -> NoReturn:
    raise KlammError(ErrorCode.INVALID_REQUEST, text)
