"""Opens the envelopes of change logs, one record at a time: what `change_formats` is for Spark, without Spark.

A value becomes the JSON of its row, or nothing for a deletion. The rules and the errors are those of a table: an upsert
has a row, a deletion and a null value delete the key, and a truncation is a bad record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from klamm.pipeline.sql.core.change_formats import TRUNCATE, TRUNCATED, delete_ops, op_column, upsert_ops
from klamm.pipeline.tables.core.json_values import parse_document, write_json
from klamm.pipeline.tables.core.text_values import BadValue

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import GraphNode


class OpenedChange(NamedTuple):
    """The row of a change as JSON, None for a deletion; the operation; and why the record is bad."""

    row: bytes | None
    op: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeEnvelope:
    """Where the envelopes of a table have the operation and the row."""

    is_debezium: bool
    op_column: str
    row_column: str | None
    upserts: tuple[str, ...]
    deletes: tuple[str, ...]

    @classmethod
    def of(cls, node: GraphNode) -> ChangeEnvelope:
        """Return the envelope of a table of format debezium or cdc."""
        is_debezium = node.format == "debezium"
        row_column = "after" if is_debezium else node.option("row_column")
        return cls(is_debezium, op_column(node), row_column, tuple(upsert_ops(node)), tuple(delete_ops(node)))

    def open(self, value: bytes | None) -> OpenedChange:
        """Return what a record's value says."""
        if value is None:
            return OpenedChange(None)
        try:
            document = parse_document(value)
        except BadValue as error:
            return OpenedChange(None, error=str(error))
        envelope = document.get("payload") if self.is_debezium and document.get("op") is None else document
        op = envelope.get(self.op_column) if isinstance(envelope, dict) else None
        if not isinstance(op, str):
            return OpenedChange(None, error=f"the value is no change: it has no {self.op_column}")
        assert isinstance(envelope, dict)
        return self._open_op(op, envelope)

    def _open_op(self, op: str, envelope: Mapping[str, Any]) -> OpenedChange:
        name = op.lower()
        if name in self.deletes:
            return OpenedChange(None, op)
        if self.is_debezium and name == TRUNCATE:
            return OpenedChange(None, op, TRUNCATED)
        if name not in self.upserts:
            known = [*self.upserts, *self.deletes, *((TRUNCATE,) if self.is_debezium else ())]
            return OpenedChange(None, op, f"{self.op_column} is {op}, which is none of {', '.join(known)}")
        row = envelope if self.row_column is None else envelope.get(self.row_column)
        if row is None:
            return OpenedChange(None, op, "the change has no row")
        return OpenedChange(write_json(row).encode(), op)
