"""What the error of a query means: whether a restart can succeed, and what an operator does when it cannot.

Of an exception in a task Spark passes on only the text, so errors are recognized by parts of their messages.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.pipeline.core.batch_ledger import DISAGREE
from klamm.pipeline.postgres.core.capture_position import CANNOT_CONTINUE
from klamm.pipeline.sql.core.pipeline_rights import PipelineRights
from klamm.pipeline.sql.core.problems import SqlError

BAD_RECORD: Final = ("USER_RAISED_EXCEPTION", "a record of ")
NO_PYTHON: Final = "the Python of this executor"
_DATA_LOSS: Final = ("failOnDataLoss", "on_data_loss")
# Of a transaction only the cause is text, with the broker's code.
_TOO_LARGE: Final = re.compile(r"\b(?:RecordTooLargeError|MESSAGE_TOO_LARGE): (?:MESSAGE_TOO_LARGE: )?(.*)")
STATE_TYPES: Final = "its state in the checkpoint has other types than its statement has now"
_CHECKPOINT: Final = (DISAGREE, "STREAM_FAILED_CHECKPOINT", "STATE_STORE_", STATE_TYPES)

# Conditions of Spark 4, and the text of Spark 3.
_STATE_SCHEMA: Final = re.compile(
    r"STATE_STORE_\w*(SCHEMA|NOT_COMPATIBLE)|Provided (\w+ )?schema does(n't| not) match|stateSchemaCheck",
    re.IGNORECASE,
)
_UNSAFE_ADVICE: Final = re.compile(
    r"schemaCheck|force running|set \S+ to false|(delet|remov|clear|discard)\w* [^.]*checkpoint|new checkpoint|"
    r"different checkpoint|non-deterministic",
    re.IGNORECASE,
)

_PAUSE_MAX_S: Final = 60.0
_DOUBLINGS_MAX: Final = 16
"""Bounds the exponent: a query may fail for months, and 2.0 ** 1024 overflows."""


@dataclass(frozen=True, slots=True)
class QueryFailure:
    """A failed query whose error a restart does not heal, and the next step of its operator."""

    reason: str
    advice: str


def is_bad_record(text: str) -> bool:
    """Whether an error is of a record that bad_records = 'fail' has refused."""
    return all(part in text for part in BAD_RECORD)


def safe_message(text: str) -> str:
    """Return an error without advice that loses rows or corrupts state: to switch checks off, to remove checkpoints."""
    if _STATE_SCHEMA.search(text):
        return STATE_TYPES
    # Texts of Klamm's own name their repair.
    if not _UNSAFE_ADVICE.search(text) or any(part in text for part in (DISAGREE, *_DATA_LOSS)):
        return text
    sentences = re.split(r"(?<=[.!?])\s+", text)
    return " ".join(sentence for sentence in sentences if not _UNSAFE_ADVICE.search(sentence)) or "Spark failed"


def statements_read(graph: Iterable[Mapping[str, Any]], names: Container[str]) -> dict[str, str]:
    """Return the statements that a query reads, by their topics; `graph` is that of the status."""
    return {row["topic"]: row["name"] for row in graph if row["topic"] and row["name"] in names}


def lasting_failure(
    error: Exception,
    text: str,
    pipeline: str,
    query: str,
    statements: Mapping[str, str] | None = None,
    rights: PipelineRights | None = None,
) -> QueryFailure | None:
    """Return the failure that an error is for good; None for one that a restart may heal.

    `statements` are those that the query reads, by their topics; `rights` what the user must be allowed.
    """
    restart = f"klamm pipeline restart {pipeline} {query}"
    if isinstance(error, SqlError):
        return QueryFailure(text, "correct the statement, stop the pipeline and run the file again")
    if is_bad_record(text):
        again = f"stop it and run it with bad_records = 'dead_letter' or 'drop'; {restart} reads the same record again"
        return QueryFailure(text, again)
    denial = rights.explain(text) if rights is not None else None
    if denial is not None:
        return QueryFailure(denial, f"grant it, then {restart}")
    if NO_PYTHON in text:
        return QueryFailure(_message_of("ConfigError: ", text), f"install it there, then {restart}")
    if any(part in text for part in _DATA_LOSS):
        # Spark's own advice names an option of the source, which a statement does not have.
        loss = _message_of("DataLoss: ", text).partition("; with failOnDataLoss")[0]
        losing = _losing_statements(loss, statements or {})
        where = f"of {' and '.join(losing)}" if losing else "of the stream"
        ways = (
            f"stop it; on_data_loss = 'continue' {where} (or SET) goes on with the first record that is left, "
            f"run --rebuild {query} reads all that is left from the beginning (of a table with --accept-lost {query}, "
            "as its values change)"
        )
        return QueryFailure(f"{', '.join(losing)}: {loss}" if losing else loss, ways)
    refusal = _TOO_LARGE.search(text)
    if refusal is not None:
        topic = next((topic for topic, name in (statements or {}).items() if name == query), None)
        larger = f"a row of {query} is larger than {f'topic {topic}' if topic else 'its topic'} takes"
        ways = (
            f"klamm topic alter {topic or 'TOPIC'} -c max.message.bytes=N, then {restart}; for more than 1 MB stop it "
            "and write kafka.max.request.size = 'N' into the statement, too; WHERE length(x) < N leaves such rows out"
        )
        return QueryFailure(f"{larger}: {refusal[1].strip()}", ways)
    if CANNOT_CONTINUE in text:
        return QueryFailure(text, f"stop it; run --rebuild {query} reads the table again, through a new slot")
    if any(part in text for part in _CHECKPOINT):
        adopt = f"stop it; run --adopt {query} continues where its output ends" if DISAGREE in text else "stop it"
        return QueryFailure(text, f"{adopt}; run --rebuild {query} discards the checkpoint and reads again")
    return None


def _losing_statements(loss: str, statements: Mapping[str, str]) -> list[str]:
    """Return the statements whose topics a text about lost records names, as `topic` or as `topic-partition`."""
    names: dict[str, None] = {}
    for sentence in loss.split("; "):
        place = sentence.removeprefix("topic ").split(" ", 1)[0]
        statement = statements.get(place) or statements.get(place.rpartition("-")[0])
        if statement is not None:
            names[statement] = None
    return list(names)


def exhausted_failure(text: str, failures: int, pipeline: str, query: str) -> QueryFailure:
    """Return the failure of a query that has failed more often in a row than `restarts` allows."""
    return QueryFailure(text, f"it failed {failures} times in a row; klamm pipeline restart {pipeline} {query}")


def restart_pause_s(failures: int, first_pause_s: float) -> float:
    """Return the pause before the next start: 1, 2, 4 ... 60 seconds."""
    return min(first_pause_s * 2.0 ** min(failures - 1, _DOUBLINGS_MAX), _PAUSE_MAX_S)


def _message_of(prefix: str, text: str) -> str:
    """Return the rest of the line that has a prefix: the message of an exception in a traceback."""
    rest = text.partition(prefix)[2]
    return rest.splitlines()[0].strip() if rest else text
