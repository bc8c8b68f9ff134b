"""Dead letters of a pipeline for its page: the newest ones, and a redrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.console.clusters import ClusterLink
from klamm.console.core.pipeline_rows import GraphStatement
from klamm.console.core.record_views import ValueView, mask_value, view_value
from klamm.console.message_reader import ReadRequest, read_records
from klamm.pipeline.sql.dead_letters import DeadLetterTopic, StoredDeadLetters, parse_dead_letter

LETTERS_MAX: Final = 50
REDRIVEN_MAX: Final = 5000
"""Letters that one form sends again: its answer must not take longer than a request may."""
_HIDDEN: Final = "hidden, as fields of the topic are masked for you"

MaskedPaths = Callable[[str], Sequence[Sequence[str]]]
"""The fields of a topic that the visitor may not see."""


@dataclass(frozen=True, slots=True)
class LetterRow:
    """One dead letter."""

    time_ms: int
    place: str
    """Partition and offset in the dead-letter topic."""
    topic: str
    partition: int
    offset: int
    error: str
    value: ValueView


async def read_letters(link: ClusterLink, statement: GraphStatement, masked_of: MaskedPaths) -> list[LetterRow]:
    """Return the newest dead letters of a statement, the newest first."""
    assert statement.dead_letters is not None
    result = await read_records(link, ReadRequest(statement.dead_letters, limit=LETTERS_MAX))
    rows = []
    for record in result.records:
        letter = parse_dead_letter(record)
        # Pipelines may share the topic.
        if letter is None or letter.stream != statement.name:
            continue
        masked = [*masked_of(statement.dead_letters), *masked_of(letter.topic)]
        rows.append(
            LetterRow(
                record.timestamp,
                f"{record.partition}/{record.offset}",
                letter.topic,
                letter.partition,
                letter.offset,
                # An error of a parser quotes what it could not parse.
                _HIDDEN if masked else letter.error,
                view_value(mask_value(letter.value, masked)),
            )
        )
    return rows


class LetterRedrive:
    """Sends the waiting dead letters of a statement to its topic; `sent` and `lost` are counted when it is done."""

    def __init__(self, link: ClusterLink, statement: GraphStatement, origins: frozenset[str]) -> None:
        assert statement.dead_letters is not None
        place = DeadLetterTopic(statement.name, statement.dead_letters, statement.reads_files, statement.refused_rows)
        settings: dict[str, Any] = {**link.client_settings("producer"), **link.client_settings("consumer")}
        self._letters = StoredDeadLetters(place, settings, origins)
        self.sent = 0

    async def run(self) -> None:
        """Send them; a letter is sent and marked as sent in one transaction, or neither."""
        self.sent = await asyncio.to_thread(self._letters.redrive, REDRIVEN_MAX)

    @property
    def lost(self) -> int:
        """Letters that were cut, and whose records are gone."""
        return self._letters.lost
