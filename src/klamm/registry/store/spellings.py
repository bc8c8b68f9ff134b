"""Schemas of a context that are spelled in another way: a Protobuf descriptor and the text that it was made of.

An id stands for one text, so a schema that is registered in another subject takes the text that has the id already.
"""

from __future__ import annotations

from klamm.registry.store.content import SchemaContent
from klamm.registry.store.parsing import AnyParsedSchema, SchemaParser
from klamm.registry.store.refusals import RegistryRefusal
from klamm.registry.store.state import RegistryState
from klamm.registry.store.steps import Steps


class SpellingIndex:
    """Ids by a short form of their texts; grows when it is used, so a start does not wait for it."""

    def __init__(self, state: RegistryState, parser: SchemaParser) -> None:
        self._state = state
        self._parser = parser
        self._ids: dict[tuple[str, str], list[int]] = {}
        """By context and reduced text."""
        self._indexed: dict[str, set[int]] = {}

    def find_text_steps(self, content: SchemaContent, context: str, parsed: AnyParsedSchema) -> Steps[str | None]:
        """Return the text of a schema of the context that is the same, spelled otherwise; None if there is none."""
        reduced = self._parser.formats.reduce_spelling(content.schema_type, content.text)
        if reduced is None:
            return None
        self._refresh(context)
        for schema_id in self._ids.get((context, reduced), ()):
            other = self._state.content(context, schema_id)
            if other is None or other.schema_type != content.schema_type or other.references != content.references:
                continue
            try:
                same = yield from self._parser.parse_steps(other, context)
            except RegistryRefusal:
                continue
            if (yield from self._parser.link_steps(same)) == (yield from self._parser.link_steps(parsed)):
                return other.text
        return None

    def _refresh(self, context: str) -> None:
        indexed = self._indexed.setdefault(context, set())
        for schema_id in self._state.ids(context) - indexed:
            # An id is never given to another schema, so what is indexed stays right.
            indexed.add(schema_id)
            content = self._state.content(context, schema_id)
            assert content is not None
            reduced = self._parser.formats.reduce_spelling(content.schema_type, content.text)
            if reduced is not None:
                self._ids.setdefault((context, reduced), []).append(schema_id)
