"""Requests of the registry: subjects, contexts and scopes in paths and queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from klamm.http.messages import HttpRequest
from klamm.http.refusals import HttpRefusal
from klamm.registry.store.log_records import is_unicode
from klamm.registry.store.subjects import DEFAULT_CONTEXT, Subject, parse_subject

V1_JSON: Final = "application/vnd.schemaregistry.v1+json"
GIVEN: Final = (V1_JSON, "application/vnd.schemaregistry+json", "application/json")
TAKEN: Final = (*GIVEN, "application/octet-stream")
FORWARDED: Final = "x-forward"
CONTEXT_PREFIX: Final = "context prefix"
"""The name under which `values` has the context of a path that begins with /contexts/{context}/."""


@dataclass(slots=True)
class RegistryRequest(HttpRequest):
    """A request to the registry."""

    @property
    def context(self) -> str | None:
        """The context of a path that begins with /contexts/{context}/."""
        return self.values.get(CONTEXT_PREFIX)

    @property
    def is_forwarded(self) -> bool:
        """Whether another registry sent it here; it is not forwarded again."""
        return self.headers.get(FORWARDED, "").lower() == "true"

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object; refuses texts that cannot be stored."""
        body = HttpRequest.json(self)
        if not is_unicode(body, self.body):
            raise HttpRefusal(400, "the body has a text that is not Unicode: half of a surrogate pair")
        return body

    def page(self, limit: int = -1) -> tuple[int, int]:
        """Return offset and limit of a list."""
        return max(self.number("offset", 0), 0), self.number("limit", limit)

    def subject(self) -> Subject:
        """Return the subject in the path, in the context of the path."""
        return parse_subject(self.values["subject"], self.context or DEFAULT_CONTEXT)

    def scope(self) -> Subject | None:
        """Return the scope of a config or mode: a subject, a context, or None for the whole registry."""
        if "subject" not in self.values:
            return None if self.context in (None, DEFAULT_CONTEXT) else Subject(str(self.context), "")
        subject = self.subject()
        return None if subject == (DEFAULT_CONTEXT, "") else subject

    def chosen_subject(self) -> Subject | None:
        """Return the subject of ?subject, which chooses the context of an id."""
        text = self.text("subject")
        if text:
            return parse_subject(text, self.context or DEFAULT_CONTEXT)
        return None if self.context is None else Subject(self.context, "")

    def subject_prefix(self, default: str) -> str:
        """Return ?subjectPrefix, in the context of the path."""
        if "subjectPrefix" not in self.query:
            return default if self.context is None else f":{self.context}:"
        prefix = self.text("subjectPrefix")
        return prefix if self.context is None or prefix.startswith(":") else f":{self.context}:{prefix}"
