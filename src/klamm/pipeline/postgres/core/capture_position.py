"""Where the capture of a table continues: the position beside its records, compared with the slot. Pure.

The position is written in the transaction of the records that it covers, and the slot is advanced afterwards. So a slot
may be behind the position, never ahead of it: then another reader has taken changes that no topic has.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

from klamm.model.errors import ConfigError, ErrorCode, KlammError
from klamm.pipeline.postgres.core.pgoutput import format_lsn

CANNOT_CONTINUE: Final = "the capture cannot continue"
"""Part of every message of a fault, by which the supervisor recognizes that a restart does not help."""
SNAPSHOT: Final = "snapshot"
STREAMING: Final = "streaming"
_VERSION: Final = 1
NAME_MAX: Final = 63
"""The longest name that PostgreSQL keeps; longer ones are cut."""
_PLAIN_MAX: Final = 40


class CaptureError(KlammError):
    """Raised when changes are lost: only reading the table again makes its topic complete."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{CANNOT_CONTINUE}: {message}")


@dataclass(frozen=True, slots=True)
class CapturePosition:
    """How far a table is captured."""

    phase: str
    slot: str
    lsn: int = 0
    """The end of the newest captured transaction."""
    reached: int = 0
    """The table has no changes from `lsn` up to here, so the slot may be advanced to it."""
    topic_id: str = ""
    system: str = ""
    """PostgreSQL's system identifier: positions mean nothing in another cluster."""
    batch: int = -1

    def encode(self) -> bytes:
        """Return the record's value."""
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes, place: str) -> CapturePosition:
        """Parse a record's value."""
        try:
            fields = json.loads(value)
            version = fields.pop("version")
            if version != _VERSION:
                raise ConfigError(f"{place} has a position of version {version}; this Klamm supports {_VERSION}")
            return cls(**fields)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{place} has no position of a capture: {error!r}") from None


@dataclass(frozen=True, slots=True)
class SlotState:
    """What PostgreSQL reports about a replication slot."""

    confirmed_lsn: int
    wal_status: str = "reserved"
    plugin: str = "pgoutput"
    database: str = ""


@dataclass(frozen=True, slots=True)
class DatabaseState:
    """What PostgreSQL reports at the start of a capture."""

    system: str
    database: str
    current_lsn: int
    slot: SlotState | None


class CaptureStep(Enum):
    """What a capture does first."""

    SNAPSHOT = "create the slot and read the table"
    SNAPSHOT_AGAIN = "drop the slot of a snapshot that did not end, create it again and read the table"
    CONTINUE = "continue from the position"


def choose_step(
    position: CapturePosition | None, slot: str, topic: str, topic_id: str, database: DatabaseState
) -> CaptureStep:
    """Return what to do first; CaptureError when changes are lost."""
    if position is None:
        if database.slot is not None:
            raise CaptureError(
                f"PostgreSQL has a replication slot {slot}, and topic {topic} has no position of it; "
                f"if nothing else reads the slot, drop it: SELECT pg_drop_replication_slot('{slot}')"
            )
        return CaptureStep.SNAPSHOT
    if position.system and position.system != database.system:
        raise CaptureError(
            f"the records of topic {topic} come from another PostgreSQL "
            f"(system identifier {position.system}, here {database.system})"
        )
    if position.phase == SNAPSHOT:
        return CaptureStep.SNAPSHOT_AGAIN if database.slot is not None else CaptureStep.SNAPSHOT
    if position.topic_id != topic_id:
        raise CaptureError(f"topic {topic} was deleted and created again, its records are gone")
    if database.slot is None:
        raise CaptureError(
            f"PostgreSQL has no replication slot {slot}: it was dropped, or the database was restored from a backup; "
            f"changes after {format_lsn(position.lsn)} are lost"
        )
    if database.slot.wal_status == "lost":
        raise CaptureError(
            f"PostgreSQL has removed log that replication slot {slot} needs, as max_slot_wal_keep_size demands; "
            f"changes after {format_lsn(position.lsn)} are lost"
        )
    if database.slot.confirmed_lsn > max(position.lsn, position.reached):
        raise CaptureError(
            f"replication slot {slot} is at {format_lsn(database.slot.confirmed_lsn)} and topic {topic} at "
            f"{format_lsn(position.lsn)}: something else reads the slot and has taken the changes between"
        )
    if database.current_lsn < position.lsn:
        raise CaptureError(
            f"PostgreSQL's log ends at {format_lsn(database.current_lsn)}, before {format_lsn(position.lsn)}, where "
            f"topic {topic} is: the database was restored from a backup"
        )
    return CaptureStep.CONTINUE


def slot_name(base: str, generation: int) -> str:
    """Return the slot of a generation: a rebuild reads through a slot of its own."""
    suffix = f"_{generation}" if generation else ""
    return base[: NAME_MAX - len(suffix)] + suffix


def default_slot(pipeline_id: str, name: str) -> str:
    """Return a slot's name: of lower-case letters, digits and underscores, the only ones that PostgreSQL allows."""
    # The pipeline's id keeps two pipelines from sharing a slot; five characters are left for a generation.
    return f"klamm_{pipeline_id[:8].lower()}_{plain_name(name)}"[: NAME_MAX - 5]


def plain_name(name: str) -> str:
    """Return a name with underscores in place of what slots may not have, cut so that a slot's name has it whole."""
    words = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name.lower())
    return words[:_PLAIN_MAX]
