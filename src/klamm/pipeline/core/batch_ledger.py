"""Compares a query's checkpoint with its sink: whether the next batch continues what the sink has. Pure.

A sink stores the number of its newest batch that had rows, and the source position at which that batch ended. Spark
plans a batch, with its end position, in the checkpoint before it runs it. A number alone proves nothing: a checkpoint
that was restored from a copy plans the same numbers with other records. docs/decisions/0019 has the reasons.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from klamm.model.errors import ErrorCode, KlammError

_DIGEST_CHARS: Final = 32
_SPARK_LOG_HEAD: Final = 2
"""Lines of a file of Spark's offset log before the positions: a version and the batch's metadata."""
_NOT_WRITTEN: Final = "not written"
"""In place of a digest: a batch that the checkpoint has not written."""
DISAGREE: Final = "checkpoint and sink disagree"
"""Part of every message, by which the runner recognizes the error: of an exception in Spark only the text arrives."""


class LedgerError(KlammError):
    """Raised when a batch would lose or repeat rows: the checkpoint is not the one that wrote what the sink has."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_TXN_STATE, message)


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """Where each source of a query ended with a batch, as canonical JSON."""

    text: str

    @property
    def digest(self) -> str:
        """A short form, for places that hold little text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:_DIGEST_CHARS]

    @property
    def ends(self) -> list[Any]:
        """The end of each source; None for a source without data."""
        ends: list[Any] = json.loads(self.text)
        return ends

    @classmethod
    def of(cls, ends: list[Any]) -> BatchPosition:
        """Return the position of these ends."""
        return cls(json.dumps(ends, sort_keys=True, separators=(",", ":")))


def parse_offsets_file(text: str) -> BatchPosition | None:
    """Parse a file of the log `offsets`, of Spark or of a JDBC source; None when it is incomplete."""
    try:
        if text.startswith("{"):
            cursor = json.loads(text)
            return BatchPosition.of([{"cursor": cursor["kind"], "end": cursor["end"]}])
        lines = text.splitlines()
        if len(lines) <= _SPARK_LOG_HEAD:
            return None
        # Spark writes `-` for a source that has no position yet.
        return BatchPosition.of([None if line == "-" else json.loads(line) for line in lines[_SPARK_LOG_HEAD:]])
    except (KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """The newest batch with rows: of a sink, or as the checkpoint has noted it; `digest` is empty when unknown."""

    batch: int = -1
    digest: str = ""
    position: BatchPosition | None = None
    """Not stored everywhere that a digest is."""


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """What a checkpoint says about the batch that runs next."""

    next_batch: int
    digests: Mapping[int, str] = field(default_factory=dict)
    """Of planned batches; at least of the next one and of the sink's newest one, if their files exist."""
    written: SinkBatch = SinkBatch()
    """The newest batch that this checkpoint has seen committed by the sink."""
    written_sink: str | None = None
    """The sink that `written` is about; None while nothing was recorded, empty when the record was given up."""


class LedgerStep(Enum):
    """What a batch may do."""

    CONTINUE = "the sink does not have the batch"
    REPLAY = "the sink has this very batch"


class LedgerFault(Enum):
    """Why a batch must not run."""

    CHECKPOINT_REMOVED = "the checkpoint was removed"
    CHECKPOINT_SET_BACK = "the checkpoint was set back"
    CHECKPOINT_DIVERGED = "the checkpoint planned other records"
    SINK_SET_BACK = "the sink was set back or removed"


@dataclass(frozen=True, slots=True)
class LedgerFinding:
    """A disagreement, with the numbers of both sides."""

    fault: LedgerFault
    sink_batch: int
    next_batch: int
    written_batch: int

    def describe(self, sink: str) -> str:
        """Return what is missing from where."""
        has = f"{sink} has the rows of batches up to {self.sink_batch}"
        match self.fault:
            case LedgerFault.CHECKPOINT_REMOVED:
                return f"{DISAGREE}: {has}, and the checkpoint has no batches: it was removed"
            case LedgerFault.CHECKPOINT_SET_BACK:
                return (
                    f"{DISAGREE}: {has}, and the checkpoint continues with batch {self.next_batch}: "
                    "it was set back, e.g. restored from an earlier copy"
                )
            case LedgerFault.CHECKPOINT_DIVERGED:
                return (
                    f"{DISAGREE}: {has}, and the checkpoint planned batch {self.sink_batch} with other offsets: "
                    "it was restored from an earlier copy, or another query writes under the same name"
                )
            case LedgerFault.SINK_SET_BACK:
                rows = "no rows" if self.sink_batch < 0 else f"the rows of batches up to {self.sink_batch}"
                return (
                    f"{DISAGREE}: the checkpoint has written batches up to {self.written_batch}, and {sink} has {rows} "
                    "of this query: it was removed or set back, or is another one"
                )


def judge(sink_name: str, sink: SinkBatch, view: CheckpointView) -> LedgerStep | LedgerFinding:
    """Return what the next batch may do."""
    written = view.written if view.written_sink == sink_name else SinkBatch()

    def finding(fault: LedgerFault) -> LedgerFinding:
        return LedgerFinding(fault, sink.batch, view.next_batch, written.batch)

    if written.batch > sink.batch:
        return finding(LedgerFault.SINK_SET_BACK)
    if sink.batch < 0:
        return LedgerStep.CONTINUE
    planned = view.digests.get(sink.batch)
    if view.next_batch == 0 and (sink.batch > 0 or planned is None):
        return finding(LedgerFault.CHECKPOINT_REMOVED)
    # Spark plans a batch before the sink gets it, and replays only the newest one. So a smaller batch, or the sink's
    # own batch without a plan, comes from a checkpoint of an earlier time.
    if view.next_batch < sink.batch or (view.next_batch == sink.batch and planned is None):
        return finding(LedgerFault.CHECKPOINT_SET_BACK)
    if planned is None and view.written_sink in (None, sink_name):
        # Spark removes the plans of old batches, and later ones had no rows: the sink's newest batch is the newest that
        # this checkpoint has written, or it comes from another history.
        planned = written.digest if written.batch == sink.batch else _NOT_WRITTEN
    # An older version stored numbers only.
    if planned and sink.digest and planned != sink.digest:
        return finding(LedgerFault.CHECKPOINT_DIVERGED)
    return LedgerStep.REPLAY if view.next_batch == sink.batch else LedgerStep.CONTINUE
