"""What a run and its viewers write to the cluster: the status of the run, and requests to it. Pure.

Both are JSON, in topics of their own, keyed by the name of the pipeline: a right to request is not one to publish.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.model.errors import ConfigError

STATUS_TOPIC: Final = "__klamm_pipeline_status"
REQUESTS_TOPIC: Final = "__klamm_pipeline_requests"
TOPIC_CONFIGS: Final = {
    "cleanup.policy": "compact",
    # Only closed segments are compacted: small ones, so that a new reader need not read a day of old statuses.
    "segment.bytes": str(4 << 20),
    "segment.ms": str(3_600_000),
    "min.cleanable.dirty.ratio": "0.1",
}
STATUS_BYTES_MAX: Final = 256 << 10
STOP: Final = "stop"
REQUEST_ACTIONS: Final = ("pause", "resume", "restart", STOP)
REQUEST_AGE_MAX_MS: Final = 5 * 60_000
"""A run that comes back after a longer time without the cluster does not surprise with what was wanted before."""
_ID_CHARS_MAX: Final = 64
_GIST_CHARS_MAX: Final = 200
_ALIVE: Final = ("starting", "running")
_CLOCKS: Final = frozenset({"updated_ms", "restart_in_ms"})
"""Fields that differ in each status of a run that does nothing."""
_LONG: Final = frozenset({"partition_lag_records", "partition_lag_ms"})
"""Fields with a number for each of perhaps 10,000 partitions; the page and the metrics of the run have them."""


@dataclass(frozen=True, slots=True)
class PublishedStatus:
    """The status of a run, with where it runs."""

    pipeline: str
    """The id of the pipeline, which it keeps when its file is renamed."""
    run: str
    host: str
    folder: str
    takes_requests: bool
    """Whether the run reads requests; it may lack the right."""
    status: Mapping[str, Any]

    @property
    def is_alive(self) -> bool:
        """Whether the run had not ended when it wrote this; a killed run writes nothing more."""
        return self.status.get("state") in _ALIVE

    @property
    def place(self) -> str:
        """The machine and the folder."""
        return f"{self.host}:{self.folder}"

    @property
    def answers(self) -> Mapping[str, Any]:
        """Answers to requests by their id: empty, or why a request was refused."""
        answers = self.status.get("requests")
        return answers if isinstance(answers, Mapping) else {}

    def encode(self) -> bytes:
        """Return the value of the record; of a very large pipeline without what matters least."""
        status, data = self.status, b""
        for shorten in _SHORTER:
            status = shorten(status)
            data = self._encode(status)
            if len(data) <= STATUS_BYTES_MAX:
                break
        return data

    def _encode(self, status: Mapping[str, Any]) -> bytes:
        document = {
            "version": 1,
            "pipeline": self.pipeline,
            "run": self.run,
            "host": self.host,
            "folder": self.folder,
            "takes_requests": self.takes_requests,
            "status": status,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> PublishedStatus:
        """Parse the value of a record; ConfigError for something else."""
        try:
            document = json.loads(data)
            pipeline, run, host, folder = (document[name] for name in ("pipeline", "run", "host", "folder"))
            status = document["status"]
            if not all(isinstance(text, str) for text in (pipeline, run, host, folder)) or not isinstance(status, dict):
                raise TypeError("a field has another type")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{STATUS_TOPIC} has a record that is no status: {error!r}") from None
        return cls(pipeline, run, host, folder, document.get("takes_requests") is True, status)


@dataclass(frozen=True, slots=True)
class PipelineRequest:
    """A request to one run of a pipeline; without a query it is for all of them."""

    id: str
    run: str
    action: str
    query: str | None
    time_ms: int

    def encode(self) -> bytes:
        """Return the value of the record."""
        document = {
            "version": 1,
            "id": self.id,
            "run": self.run,
            "action": self.action,
            "query": self.query,
            "time_ms": self.time_ms,
        }
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, data: bytes) -> PipelineRequest | None:
        """Parse the value of a record; None for something else: others can write to the topic."""
        try:
            document = json.loads(data)
            request = cls(*(document[name] for name in ("id", "run", "action", "query", "time_ms")))
        except (KeyError, TypeError, ValueError, RecursionError):
            return None
        texts = (request.id, request.run, request.query if request.query is not None else "")
        is_valid = all(isinstance(text, str) for text in texts) and len(request.id) <= _ID_CHARS_MAX
        is_timed = isinstance(request.time_ms, int) and not isinstance(request.time_ms, bool)
        return request if is_valid and is_timed and request.action in REQUEST_ACTIONS else None

    def is_old(self, now_ms: int) -> bool:
        """Whether it has waited for so long that it is not carried out."""
        return now_ms - self.time_ms > REQUEST_AGE_MAX_MS


def without_clocks(status: Mapping[str, Any]) -> dict[str, Any]:
    """Return a status without the fields that differ although nothing has happened."""
    return _map_queries(_omit(status, _CLOCKS), _omit_clocks)


def _omit_clocks(query: Mapping[str, Any]) -> dict[str, Any]:
    return _omit(query, _CLOCKS)


def _omit_long(query: Mapping[str, Any]) -> dict[str, Any]:
    return _omit(query, _LONG)


def _keep_gist(query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query without the whole error, of which the first line remains."""
    return _omit(query, frozenset({"error", "detail"}))


def _keep_state(query: Mapping[str, Any]) -> dict[str, Any]:
    return {"state": query.get("state"), "error_gist": str(query.get("error_gist") or "")[:_GIST_CHARS_MAX]}


def _shorten_lags(status: Mapping[str, Any]) -> dict[str, Any]:
    return _map_queries(status, _omit_long)


def _shorten_errors(status: Mapping[str, Any]) -> dict[str, Any]:
    return {**_map_queries(status, _keep_gist), "error": str(status.get("error") or "")[: 10 * _GIST_CHARS_MAX] or None}


def _omit_graph(status: Mapping[str, Any]) -> dict[str, Any]:
    return {**status, "graph": []}


def _shorten_queries(status: Mapping[str, Any]) -> dict[str, Any]:
    return _map_queries(status, _keep_state)


def _omit_queries(status: Mapping[str, Any]) -> dict[str, Any]:
    return {**status, "queries": {}}


_SHORTER: Final[tuple[Callable[[Mapping[str, Any]], dict[str, Any]], ...]] = (
    _shorten_lags,
    _shorten_errors,
    _omit_graph,
    _shorten_queries,
    _omit_queries,
)
"""Steps that make a status shorter, until it fits."""


def _omit(fields: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _map_queries(status: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    return {**status, "queries": {name: change(query) for name, query in (status.get("queries") or {}).items()}}
