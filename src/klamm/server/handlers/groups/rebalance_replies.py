"""Responses to JoinGroup and SyncGroup from templates: those of a generation's members differ in one field.

The bytes are those that the codec would produce.
"""

from functools import lru_cache
from struct import Struct

from klamm.protocol.codec import encode
from klamm.protocol.framing import encode_response_start
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.protocol.messages.sync_group import SyncGroupResponse
from klamm.protocol.varint import encode_uvarint

JOIN_FLEXIBLE_SINCE = 6
SYNC_FLEXIBLE_SINCE = 4

_INT16 = Struct(">h")
_INT32 = Struct(">i")
# Shorter than 127 bytes: the length of the placeholder is one byte in flexible versions, and is cut off below.
_PLACE = "-the place of a member-"
_BLOB = b"-the place of an assignment-"
_TEMPLATES_MAX = 256
NAMES_CHARS_MAX = 1024
"""Of the names in a template that is kept: members choose them, and each may have 32 KB."""


def encode_join_reply(correlation_id: int, version: int, response: JoinGroupResponse) -> bytes:
    """Return the encoded reply to a member that is not the leader."""
    names = (response.protocol_type, response.protocol_name, response.leader)
    make_template = _join_template.__wrapped__ if _are_long(*names) else _join_template
    before, after = make_template(
        version,
        response.generation_id,
        response.protocol_type,
        response.protocol_name,
        response.leader,
        response.skip_assignment,
    )
    name = response.member_id.encode()
    length = encode_uvarint(len(name) + 1) if version >= JOIN_FLEXIBLE_SINCE else _INT16.pack(len(name))
    size = 4 + len(before) + len(length) + len(name) + len(after)
    return b"".join((encode_response_start(size, correlation_id), before, length, name, after))


# A group of a thousand members encodes one response per generation, not a thousand.
@lru_cache(maxsize=_TEMPLATES_MAX)
def _join_template(
    version: int,
    generation_id: int,
    protocol_type: str | None,
    protocol_name: str | None,
    leader: str,
    skip_assignment: bool,
) -> tuple[bytes, bytes]:
    response = JoinGroupResponse(
        generation_id=generation_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=_PLACE,
        members=[],
    )
    flexible = version >= JOIN_FLEXIBLE_SINCE
    # From the right: the leader's id comes before, and could contain anything.
    before, _, after = encode(response, version).rpartition(_PLACE.encode())
    header = b"\0" if flexible else b""
    # Without the length of the placeholder: the caller writes the real one.
    return header + before[: -1 if flexible else -2], after


def encode_sync_reply(correlation_id: int, version: int, response: SyncGroupResponse) -> bytes:
    """Return the encoded reply with a member's assignment."""
    is_long = _are_long(response.protocol_type, response.protocol_name)
    make_template = _sync_template.__wrapped__ if is_long else _sync_template
    before, after = make_template(version, response.protocol_type, response.protocol_name)
    share = response.assignment
    length = encode_uvarint(len(share) + 1) if version >= SYNC_FLEXIBLE_SINCE else _INT32.pack(len(share))
    size = 4 + len(before) + len(length) + len(share) + len(after)
    return b"".join((encode_response_start(size, correlation_id), before, length, share, after))


@lru_cache(maxsize=_TEMPLATES_MAX)
def _sync_template(version: int, protocol_type: str | None, protocol_name: str | None) -> tuple[bytes, bytes]:
    response = SyncGroupResponse(protocol_type=protocol_type, protocol_name=protocol_name, assignment=_BLOB)
    flexible = version >= SYNC_FLEXIBLE_SINCE
    before, _, after = encode(response, version).rpartition(_BLOB)
    header = b"\0" if flexible else b""
    return header + before[: -1 if flexible else -4], after


def _are_long(*names: str | None) -> bool:
    return sum(len(name) for name in names if name is not None) > NAMES_CHARS_MAX
