"""The checkpoint of one query, as the ledger needs it: what Spark has planned, and what the sink has committed of it.

`offsets/N` and `commits/N` are Spark's, or those of a JDBC source. `klamm/written` is written here after a sink has
committed a batch with rows; by it a sink that was removed or set back is recognized. `klamm/starts` has where a query
begins that has no batches yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.checkpoint_folder import CheckpointFolder, LocalFolder
from klamm.pipeline.core.batch_ledger import (
    BatchPosition,
    CheckpointView,
    LedgerError,
    LedgerFinding,
    LedgerStep,
    SinkBatch,
    judge,
    parse_offsets_file,
)

_OFFSETS: Final = "offsets"
_COMMITS: Final = "commits"
_KLAMM: Final = "klamm"
_WRITTEN: Final = "written"
_STARTS: Final = "starts"


def local_path(location: str) -> str | None:
    """Return the path of a checkpoint on this machine; None when only Spark's file systems reach it."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return None if "://" in location else location


class QueryCheckpoint:
    """The checkpoint of one query."""

    def __init__(self, folder: CheckpointFolder) -> None:
        self._folder = folder

    @classmethod
    def at(cls, location: str | None) -> QueryCheckpoint | None:
        """Return the checkpoint at a location; None for one that is not on this machine."""
        path = local_path(location) if location else None
        return None if path is None else cls(LocalFolder(path))

    @property
    def path(self) -> str:
        """The checkpoint's folder."""
        return self._folder.path

    def _last(self, log: str) -> int:
        # Other names are temporary files and checksums.
        return max((int(name) for name in self._folder.names(log) if name.isdecimal()), default=-1)

    def last_planned(self) -> int:
        """Return the newest planned batch; -1 for none."""
        return self._last(_OFFSETS)

    def next_batch(self) -> int:
        """Return the batch that a start runs first: the newest planned one again, unless it is committed."""
        planned = self.last_planned()
        return planned + 1 if planned <= self._last(_COMMITS) else planned

    def position(self, batch: int) -> BatchPosition | None:
        """Return the planned position of a batch; None when its file is gone or unreadable."""
        plan = self.plan(batch)
        return None if plan is None else parse_offsets_file(plan)

    def plan(self, batch: int) -> str | None:
        """Return the file of a planned batch; None when it is gone or unreadable."""
        if batch < 0:
            return None
        try:
            return self._folder.read(_OFFSETS, str(batch))
        except OSError:
            return None

    def read_written(self) -> tuple[str | None, SinkBatch]:
        """Return the sink, and the newest batch with rows that it has committed for this checkpoint.

        No sink while nothing was recorded.
        """
        try:
            document = json.loads(self._folder.read(_KLAMM, _WRITTEN))
            return str(document["sink"]), SinkBatch(int(document["batch"]), str(document["position"]))
        except (OSError, KeyError, TypeError, ValueError):
            return None, SinkBatch()

    def record_written(self, sink: str, batch: int) -> None:
        """Record that a sink has committed a batch with rows."""
        position = self.position(batch)
        document = {"sink": sink, "batch": batch, "position": "" if position is None else position.digest}
        # Not synced, as small batches would feel it. After a power failure it may be an older one, which weakens the
        # check of the sink and never refuses a batch.
        self._folder.write(_KLAMM, _WRITTEN, json.dumps(document) + "\n", durable=False)

    def forget_written(self) -> None:
        """Record that no batch was written: a sink in another place may lack the batches until now."""
        document = {"sink": "", "batch": -1, "position": ""}
        self._folder.write(_KLAMM, _WRITTEN, json.dumps(document) + "\n", durable=True)

    def has_commits(self) -> bool:
        """Whether a batch is committed: from then on the offset log alone has the position."""
        return self._last(_COMMITS) >= 0

    def starts(self) -> dict[str, Any]:
        """Return where each source begins, as stored at the first start; empty while nothing is stored."""
        try:
            return dict(json.loads(self._folder.read(_KLAMM, _STARTS)))
        except FileNotFoundError:
            return {}
        except (TypeError, ValueError) as error:
            # Not passed over: the query would begin somewhere else, and skip records.
            raise ConfigError(f"{self.path}/{_KLAMM}/{_STARTS} is damaged: {error!r}") from None

    def record_starts(self, positions: Mapping[str, Any]) -> None:
        """Store where each source begins; durably, as no other file has it until a batch is planned."""
        self._folder.write(_KLAMM, _STARTS, json.dumps(positions, sort_keys=True) + "\n")

    def view(self, next_batch: int, sink: SinkBatch) -> CheckpointView:
        """Return what the ledger compares with the sink."""
        digests = {}
        for batch in {next_batch, sink.batch}:
            position = self.position(batch)
            if position is not None:
                digests[batch] = position.digest
        written_sink, written = self.read_written()
        return CheckpointView(next_batch, digests, written, written_sink)

    def judge_batch(self, sink_name: str, sink: SinkBatch, batch: int) -> LedgerStep | LedgerFinding:
        """Return what a batch may do."""
        return judge(sink_name, sink, self.view(batch, sink))

    def check_batch(self, sink_name: str, sink: SinkBatch, batch: int) -> LedgerStep:
        """Return what a batch may do; LedgerError when it would lose or repeat rows."""
        verdict = self.judge_batch(sink_name, sink, batch)
        if isinstance(verdict, LedgerFinding):
            raise LedgerError(f"batch {batch}: {verdict.describe(sink_name)}")
        return verdict
