"""The rules of a schema that hold for reading: those of its payload, those between two versions, those of its value."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from klamm.client.serde import RecordContext
from klamm.registry.client import Registry, Schema, UnknownSchema, subject_path
from klamm.registry.codecs.compilation import SchemaCodec
from klamm.registry.framing import SchemaFrame, read_path, write_path
from klamm.registry.rules import DOWNGRADE, MIGRATION, UPGRADE, RuleExecutors, RuleStep, plan_rules

Decode = Callable[[SchemaFrame], Any]


class RuledDecode(NamedTuple):
    """Decodes records of a schema and executes its rules; most schemas have none."""

    decode: Decode
    writer: SchemaCodec | None = None
    """The codec of the record's schema; None if it is not compiled."""
    encoding: tuple[RuleStep, ...] = ()
    domain: tuple[RuleStep, ...] = ()
    """Those of migrations come first."""

    @property
    def has_rules(self) -> bool:
        """Whether there are rules to execute."""
        return bool(self.encoding or self.domain)

    @property
    def full_name(self) -> str | None:
        """The name by which strategies find the subject."""
        return None if self.writer is None else self.writer.full_name

    def read(self, frame: SchemaFrame, subject: str, context: RecordContext) -> Any:
        """Decode a record."""
        for step in self.encoding:
            frame = self._apply_encoding(step, frame, subject, context)
        value = self.decode(frame)
        for step in self.domain:
            value = step.apply(value, subject, *context)
        return value

    def _apply_encoding(self, step: RuleStep, frame: SchemaFrame, subject: str, context: RecordContext) -> SchemaFrame:
        if step.schema.kind != "PROTOBUF" or frame.indexes is not None:
            return frame._replace(payload=step.apply(frame.payload, subject, *context))
        # The path of the message belongs to the frame and not to the payload.
        path, payload = read_path(frame)
        return frame._replace(payload=write_path(path) + step.apply(payload, subject, *context))


def plan_migrations(
    registry: Registry, subject: str, source: Schema, target: Schema, executors: RuleExecutors
) -> tuple[RuleStep, ...]:
    """Return the migration rules between two versions of a subject, as confluent-kafka executes them."""
    if source.id == target.id:
        return ()
    first, last = _find_version(registry, subject, source), target.version
    if first is None or last is None:
        return ()
    numbers = registry.call("GET", subject_path(subject, "versions"), deleted="true")
    # A version's rules lead to it from the one before, and back.
    between = sorted(number for number in numbers if min(first, last) < number <= max(first, last))
    mode = UPGRADE if first < last else DOWNGRADE
    steps: list[RuleStep] = []
    for number in between if mode == UPGRADE else reversed(between):
        steps += plan_rules(registry.version(subject, number), MIGRATION, mode, executors)
    return tuple(steps)


def _find_version(registry: Registry, subject: str, schema: Schema) -> int | None:
    with contextlib.suppress(UnknownSchema):
        # Deleted versions as well: old records are still there.
        uses = registry.call("GET", f"/schemas/ids/{schema.id}/versions", subject=subject, deleted="true")
        for use in uses if isinstance(uses, list) else ():
            if isinstance(use, dict) and use.get("subject") == subject and isinstance(use.get("version"), int):
                return int(use["version"])
    return None
