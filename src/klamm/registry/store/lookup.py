"""Queries that change nothing: subjects, versions, schemas by id or GUID, referrers.

A name without a context that the default context does not have is looked for in all contexts.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from klamm.registry.store.content import SchemaContent
from klamm.registry.store.contracts import has_rule_type
from klamm.registry.store.refusals import schema_not_found, subject_not_found, version_not_found
from klamm.registry.store.requests import LATEST
from klamm.registry.store.scopes import ALIAS, follow_alias
from klamm.registry.store.state import RegistryState, SchemaVersion
from klamm.registry.store.subjects import DEFAULT_CONTEXT, Subject, matches_prefix

T = TypeVar("T")


def cut_page(items: Sequence[T], offset: int, limit: int) -> Sequence[T]:
    """Return a part of a list; a limit below 1 is none."""
    return items[offset : offset + limit] if limit > 0 else items[offset:]


def locate_subject(state: RegistryState, subject: Subject) -> Subject:
    """Return the subject that a call is about: the target of an alias, or the same name in another context."""
    subject = follow_alias(state, subject)
    if subject in state.subjects or subject.context != DEFAULT_CONTEXT:
        return subject
    for context in state.context_names():
        if Subject(context, subject.name) in state.subjects:
            return Subject(context, subject.name)
    return subject


def list_names(state: RegistryState, subjects: Iterable[Subject], *, deleted: bool, deleted_only: bool) -> list[str]:
    """Return the names of those subjects that have versions to be listed."""
    if deleted and not deleted_only:
        return list(map(str, subjects))
    return [str(subject) for subject in subjects if _is_live(state, subject) != deleted_only]


def _is_live(state: RegistryState, subject: Subject) -> bool:
    last = state.subjects.last(subject)
    # Nearly always the last one tells.
    live = last is not None and not last.deleted
    return live or any(not version.deleted for version in state.subjects.values(subject))


def list_versions(state: RegistryState, subject: Subject, *, deleted: bool, deleted_only: bool) -> list[SchemaVersion]:
    """Return the versions of a subject; 40401 when there are none."""
    versions = state.versions(subject, deleted=deleted or deleted_only)
    if deleted_only:
        versions = [version for version in versions if version.deleted]
    if not versions:
        raise subject_not_found(subject)
    return versions


def find_version(state: RegistryState, subject: Subject, number: int, *, deleted: bool = False) -> SchemaVersion:
    """Return a version or the newest one; 40401 without the subject, 40402 without the version."""
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise subject_not_found(subject)
    if number == LATEST:
        return versions[-1]
    version = state.version(subject, number)
    if version is None or (version.deleted and not deleted):
        raise version_not_found(number)
    return version


def find_by_id(state: RegistryState, schema_id: int, subject: Subject | None) -> tuple[str, SchemaContent]:
    """Return the context and content of an id; the subject chooses the context."""
    context = DEFAULT_CONTEXT if subject is None else subject.context
    content = state.content(context, schema_id)
    if content is not None and (subject is None or not subject.name or context != DEFAULT_CONTEXT):
        return context, content
    if subject is not None and subject.name and context == DEFAULT_CONTEXT:
        # An id means another schema in another context: prefer the context that has this subject with this id.
        for name in (DEFAULT_CONTEXT, *state.context_names()):
            candidate = Subject(name, subject.name)
            other = state.content(name, schema_id)
            uses = state.uses(name, schema_id, deleted=True)
            if other is not None and any(version.subject == candidate for version in uses):
                return name, other
    if content is None:
        raise schema_not_found(schema_id)
    return context, content


def find_by_guid(state: RegistryState, guid: str) -> list[tuple[str, int]]:
    """Return contexts and ids of a GUID."""
    try:
        places = state.list_places(uuid.UUID(guid).bytes)
    except ValueError:
        places = []
    if not places:
        raise schema_not_found(guid)
    return places


def find_by_metadata(
    state: RegistryState, subject: Subject, pairs: Mapping[str, str], *, deleted: bool
) -> SchemaVersion:
    """Return the newest version whose metadata has all properties."""
    for version in reversed(list_versions(state, subject, deleted=deleted, deleted_only=False)):
        properties = (version.content.metadata or {}).get("properties") or {}
        if pairs.items() <= properties.items():
            return version
    raise schema_not_found()


def list_referrer_ids(state: RegistryState, version: SchemaVersion, *, deleted: bool) -> list[int]:
    """Return the ids of schemas that refer to a version, in order."""
    return sorted({referrer.schema_id for referrer in list_referrers(state, version, deleted=deleted)})


def list_referrers(state: RegistryState, version: SchemaVersion, *, deleted: bool) -> Iterable[SchemaVersion]:
    """Yield the versions that refer to a version."""
    for subject, number in state.referrers.get((version.subject, version.version), {}):
        referrer = state.version(subject, number)
        if referrer is not None and (deleted or not referrer.deleted):
            yield referrer


def schema_subjects(state: RegistryState, prefix: str, *, aliases: bool = False) -> list[Subject]:
    """Return the subjects whose versions are listed, in order."""
    subjects = state.order.matching(prefix)
    if aliases:
        # A subject that is only an alias has no versions: its target's are listed.
        named = [subject for subject in state.configs if subject is not None and ALIAS in state.configs[subject]]
        targets = [follow_alias(state, subject) for subject in named if matches_prefix(subject, prefix)]
        subjects = sorted({*subjects, *targets}, key=str)
    return subjects


def list_schemas(
    state: RegistryState, subjects: Iterable[Subject], *, deleted: bool, latest_only: bool, rule_type: str | None
) -> list[SchemaVersion]:
    """Return the versions of subjects that are in a list of schemas."""
    versions: list[SchemaVersion] = []
    for subject in subjects:
        of_subject = state.versions(subject, deleted=deleted)
        versions += of_subject[-1:] if latest_only else of_subject
    if rule_type:
        versions = [version for version in versions if has_rule_type(version.content.rule_set, rule_type)]
    return versions
