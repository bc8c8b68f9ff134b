"""Who writes: the messages of the group protocol `sr`, by which registries elect one of them. Pure.

The members of a classic group with protocol type `sr` and protocol `v0` send their identity as metadata; the group's
leader (any member, the coordinator chooses it) sends the same assignment to all: which member is the registry's leader.
Confluent's registry and Karapace speak the same, so all of them can be members of one group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from klamm.registry.store.log_records import encode_json

PROTOCOL_TYPE: Final = "sr"
PROTOCOL: Final = "v0"
_VERSION: Final = 1
_NO_ERROR: Final = 0
_DUPLICATE_URLS: Final = 1


class RegistryIdentity(NamedTuple):
    """A member: where other registries forward to, and whether it may lead."""

    host: str
    port: int
    eligible: bool = True
    scheme: str = "http"
    leading: bool = False
    """Whether it leads at the moment; a leader that stays spares the group a change."""

    @property
    def url(self) -> str:
        """The address for requests."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    def encode(self) -> bytes:
        """Encode as metadata of JoinGroup."""
        return encode_json(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the fields of the message."""
        # Java's registry refuses fields that it does not have, so there are no others.
        return {
            "version": _VERSION,
            "host": self.host,
            "port": self.port,
            "master_eligibility": self.eligible,
            "scheme": self.scheme,
            "leader": self.leading,
        }


class ElectionResult(NamedTuple):
    """An assignment: the leader, or why there is none."""

    member_id: str | None
    leader: RegistryIdentity | None
    error: str | None = None


def decode_identity(data: bytes) -> RegistryIdentity | None:
    """Decode a member's metadata, of any version; None when it is damaged."""
    try:
        return _parse_identity(json.loads(data))
    except (ValueError, TypeError, KeyError):
        return None


def _parse_identity(fields: Mapping[str, Any]) -> RegistryIdentity:
    return RegistryIdentity(
        str(fields["host"]),
        int(fields["port"]),
        bool(fields.get("master_eligibility", True)),
        str(fields.get("scheme") or "http"),
        bool(fields.get("leader", False)),
    )


def elect(members: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the assignment of every member: the member that leads already, else the one with the smallest URL."""
    identities = {member_id: decode_identity(data) for member_id, data in members.items()}
    candidates = {member_id: member for member_id, member in identities.items() if member and member.eligible}
    urls = [member.url for member in identities.values() if member]
    assignment: dict[str, Any] = {"version": _VERSION, "error": _NO_ERROR, "master": None, "master_identity": None}
    if len(set(urls)) < len(urls):
        # Two members with one address: requests would be forwarded to either, so neither is elected.
        assignment["error"] = _DUPLICATE_URLS
    elif candidates:
        leading = [member_id for member_id, member in candidates.items() if member.leading]
        by_url = {member.url: member_id for member_id, member in candidates.items()}
        chosen = leading[0] if len(leading) == 1 else by_url[min(by_url)]
        assignment |= {"master": chosen, "master_identity": candidates[chosen].to_json()}
    return dict.fromkeys(members, encode_json(assignment))


def decode_result(data: bytes) -> ElectionResult:
    """Decode the assignment of SyncGroup, from whatever registry led the group."""
    try:
        fields = json.loads(data)
        if fields.get("error", _NO_ERROR):
            reason = "two members have the same URL" if fields["error"] == _DUPLICATE_URLS else f"{fields['error']}"
            return ElectionResult(None, None, f"the election failed: {reason}")
        if not fields.get("master") or not fields.get("master_identity"):
            return ElectionResult(None, None, "no member may lead")
        leader = _parse_identity(fields["master_identity"])
        if not leader.eligible:
            # Karapace assigns such a member when there is no other; it must not lead all the same.
            return ElectionResult(None, None, "no member may lead")
        return ElectionResult(str(fields["master"]), leader)
    except (ValueError, TypeError, KeyError, AttributeError):
        return ElectionResult(None, None, "the assignment is damaged")
