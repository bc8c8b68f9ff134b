"""Schemas of a cluster's registry, any with Confluent's HTTP interface; requests run in threads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from klamm.console.core.record_views import SubjectVersion
from klamm.console.core.schema_texts import ReferenceRow
from klamm.registry.client import Registry, RegistryError, UnknownSchema, parse_settings, subject_path

LEVELS: Final = (
    *("BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"),
)
_SUBJECTS_S: Final = 60.0
_SUBJECTS_MAX: Final = 1000
_REQUESTS_MAX: Final = 20
"""Ids whose subjects are requested for one page."""
_REQUEST_MS: Final = 3000
"""A person waits; Confluent's clients wait thirty seconds, three times."""


@dataclass(frozen=True, slots=True)
class ShownSchema:
    """One version of a subject."""

    subject: str
    version: int
    id: int
    kind: str
    text: str
    references: tuple[ReferenceRow, ...] = ()


@dataclass(frozen=True, slots=True)
class CompatibilityAnswer:
    """Whether a schema may become the next version, and if not, why."""

    compatible: bool
    messages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicSubject:
    """A subject of a topic's keys or values."""

    name: str
    versions: tuple[int, ...] = ()
    kind: str = ""
    """Of the newest version; empty without one."""


class SchemaClient:
    """The registry of one cluster."""

    def __init__(self, url: str) -> None:
        self.url = url
        settings = {"schema.registry.url": url, "request.timeout.ms": _REQUEST_MS, "max.retries": 0}
        self.registry = Registry(parse_settings(settings))
        self._subjects: dict[int, tuple[float, list[SubjectVersion]]] = {}

    async def list_subjects(self, *, deleted: bool = False) -> list[str]:
        """Return all subjects; with `deleted` also those whose versions are all deleted."""
        query = {"deleted": "true"} if deleted else {}
        try:
            return sorted(await self._call("GET", "/subjects", **query))
        except UnknownSchema:
            # Every registry has this path, also without subjects.
            raise RegistryError(f"there is no schema registry at {self.url}") from None

    async def list_versions(self, subject: str) -> list[int]:
        """Return the versions of a subject; an empty list when it does not exist."""
        try:
            return list(await self._call("GET", subject_path(subject, "versions")))
        except UnknownSchema:
            return []

    async def list_deleted(self, subject: str) -> list[int]:
        """Return the versions that are deleted, but not for good."""
        try:
            every = await self._call("GET", subject_path(subject, "versions"), deleted="true")
        except UnknownSchema:
            return []
        live = await self.list_versions(subject)
        return sorted(set(map(int, every)) - set(live))

    async def get_version(self, subject: str, version: int) -> ShownSchema:
        """Return one version, also one that is deleted, but not for good."""
        answer = await self._call("GET", subject_path(subject, "versions", str(version)), deleted="true")
        return ShownSchema(
            subject,
            int(answer["version"]),
            int(answer["id"]),
            str(answer.get("schemaType", "AVRO")),
            str(answer["schema"]),
            tuple(
                ReferenceRow(str(item["name"]), str(item["subject"]), int(item["version"]))
                for item in answer.get("references") or ()
            ),
        )

    async def get_compatibility(self, subject: str) -> str:
        """Return the level of a subject, or that of the registry; empty where the registry does not say."""
        try:
            answer = await self._call("GET", _config_path(subject), defaultToGlobal="true")
        except (RegistryError, UnknownSchema):
            # Registries differ in this path; a page must not fail for it.
            return ""
        return str(answer.get("compatibilityLevel", ""))

    async def get_own_level(self, subject: str | None) -> str:
        """Return the level that a subject has of its own, or with None that of the registry; empty without one."""
        try:
            answer = await self._call("GET", _config_path(subject))
        except (RegistryError, UnknownSchema):
            return ""
        return str(answer.get("compatibilityLevel", ""))

    async def set_level(self, subject: str | None, level: str | None) -> None:
        """Set the level of a subject, or with None that of the registry; without a level the subject has none."""
        if level is None:
            await self._change("DELETE", _config_path(subject))
        else:
            await self._change("PUT", _config_path(subject), {"compatibility": level})

    async def delete(self, subject: str, version: int | None, *, permanent: bool) -> None:
        """Delete a version or a whole subject; for good only what was deleted before."""
        path = subject_path(subject) if version is None else subject_path(subject, "versions", str(version))
        await self._change("DELETE", path, **({"permanent": "true"} if permanent else {}))

    async def check(
        self, subject: str, kind: str, text: str, references: Sequence[ReferenceRow] = ()
    ) -> CompatibilityAnswer:
        """Return whether the schema is compatible with the newest version; a first version always is."""
        path = "/compatibility" + subject_path(subject, "versions", "latest")
        try:
            answer = await self._call("POST", path, _body(kind, text, references), verbose="true")
        except UnknownSchema:
            return CompatibilityAnswer(compatible=True, messages=())
        return CompatibilityAnswer(bool(answer["is_compatible"]), tuple(map(str, answer.get("messages", ()))))

    async def register(self, subject: str, kind: str, text: str, references: Sequence[ReferenceRow] = ()) -> int:
        """Register a version and return its id."""
        answer = await self._call("POST", subject_path(subject, "versions"), _body(kind, text, references))
        return int(answer["id"])

    async def has_subject(self, subject: str) -> bool:
        """Whether a subject has versions; False when the registry does not answer."""
        try:
            return bool(await self.list_versions(subject))
        except RegistryError:
            return False

    async def describe_subject(self, subject: str) -> TopicSubject:
        """Return a subject; without versions when it has none or the registry does not answer."""
        try:
            versions = await self.list_versions(subject)
            kind = (await self.get_version(subject, versions[-1])).kind if versions else ""
        except (RegistryError, UnknownSchema):
            return TopicSubject(subject)
        return TopicSubject(subject, tuple(versions), kind)

    async def list_referrers(self, subject: str, version: int) -> list[SubjectVersion]:
        """Return the versions of subjects whose schemas refer to one; none where the registry does not say."""
        try:
            ids = await self._call("GET", subject_path(subject, "versions", str(version), "referencedby"))
            numbers = sorted(map(int, ids))[:_REQUESTS_MAX]
        except (RegistryError, UnknownSchema, TypeError, ValueError):
            return []
        versions = {
            version for part in await asyncio.gather(*map(self._list_subject_versions, numbers)) for version in part
        }
        return sorted(versions, key=attrgetter("subject", "version"))

    async def find_subjects(self, ids: Iterable[int], topic: str) -> dict[int, SubjectVersion]:
        """Return where the schemas of ids are registered, for a topic's subject if there is one."""
        wanted = sorted(set(ids))[:_REQUESTS_MAX]
        lists = await asyncio.gather(*map(self._list_subject_versions, wanted))
        subjects = {}
        for number, versions in zip(wanted, lists, strict=True):
            own = [version for version in versions if version.subject in (f"{topic}-value", f"{topic}-key")]
            if versions:
                subjects[number] = (own or versions)[-1]
        return subjects

    async def _list_subject_versions(self, number: int) -> list[SubjectVersion]:
        kept = self._subjects.get(number)
        if kept is not None and time.monotonic() - kept[0] < _SUBJECTS_S:
            return kept[1]
        try:
            answer = await self._call("GET", f"/schemas/ids/{number}/versions")
            versions = [SubjectVersion(str(item["subject"]), int(item["version"])) for item in answer]
        except (RegistryError, UnknownSchema, KeyError, TypeError, ValueError):
            # Older registries lack this path; a record is shown without its subject then.
            versions = []
        if len(self._subjects) >= _SUBJECTS_MAX:
            self._subjects.clear()
        self._subjects[number] = (time.monotonic(), versions)
        return versions

    async def _change(self, method: str, path: str, body: Any = None, **query: str) -> None:
        try:
            await self._call(method, path, body, **query)
        except UnknownSchema as error:
            raise RegistryError(error.message or "the registry does not have it", 404) from None

    async def _call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        return await asyncio.to_thread(self.registry.call, method, path, body, **query)


def _config_path(subject: str | None) -> str:
    return "/config" if subject is None else "/config/" + subject_path(subject).rpartition("/")[2]


def _body(kind: str, text: str, references: Sequence[ReferenceRow]) -> dict[str, Any]:
    body: dict[str, Any] = {"schema": text, "schemaType": kind}
    if references:
        body["references"] = [reference._asdict() for reference in references]
    return body
