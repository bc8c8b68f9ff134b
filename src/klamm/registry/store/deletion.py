"""Deletes, first soft, then hard: a soft-deleted version is hidden, and its id still resolves."""

from __future__ import annotations

from dataclasses import replace

from klamm.registry.store import log_records as log
from klamm.registry.store.log_records import LogEntry, LogKey, RegistryDecision, schema_entry
from klamm.registry.store.lookup import list_referrers
from klamm.registry.store.refusals import (
    RegistryRefusal,
    already_deleted,
    reference_exists,
    subject_associated,
    subject_not_found,
    version_not_found,
)
from klamm.registry.store.requests import LATEST
from klamm.registry.store.scopes import require_writable
from klamm.registry.store.state import RegistryState, SchemaVersion
from klamm.registry.store.subjects import DEFAULT_CONTEXT, Subject


def decide_delete_subject(state: RegistryState, subject: Subject, *, permanent: bool) -> RegistryDecision:
    """Delete a subject; the answer is the list of deleted versions."""
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise subject_not_found(subject)
    require_writable(state, subject)
    live = [version for version in versions if not version.deleted]
    if permanent and live:
        raise RegistryRefusal(40405, f"Subject '{subject}' was not deleted first before being permanently deleted")
    if not permanent and not live:
        raise already_deleted(f"Subject '{subject}'", 40404)
    _refuse_associated(state, subject)
    for version in versions if permanent else live:
        # Versions of the same subject go with it.
        _refuse_referenced(state, version, permanent=permanent, besides=subject)
    if not permanent:
        value = {"subject": str(subject), "version": live[-1].version}
        entry = LogEntry(LogKey(log.DELETE_SUBJECT, str(subject)), value)
        return RegistryDecision((entry,), [version.version for version in live])
    entries = [*map(_tombstone, versions), *_settings_tombstones(state, subject)]
    return RegistryDecision((*_keep_ids(state, subject), *entries), [version.version for version in versions])


def decide_delete_version(state: RegistryState, subject: Subject, number: int, *, permanent: bool) -> RegistryDecision:
    """Delete one version; the answer is its number."""
    versions = state.versions(subject, deleted=True)
    live = [version for version in versions if not version.deleted]
    if not versions or (not live and not permanent and number == LATEST):
        raise subject_not_found(subject)
    if number == LATEST:
        number = (live or versions)[-1].version
    version = state.version(subject, number)
    if version is None:
        raise version_not_found(number)
    require_writable(state, subject)
    if permanent and not version.deleted:
        raise RegistryRefusal(
            40407, f"Subject '{subject}' Version {number} was not deleted first before being permanently deleted"
        )
    if not permanent and version.deleted:
        raise already_deleted(f"Subject '{subject}' Version {number}", 40406)
    _refuse_referenced(state, version, permanent=permanent)
    if live == [version]:
        _refuse_associated(state, subject)
    if not permanent:
        return RegistryDecision((schema_entry(replace(version, deleted=True)),), number)
    entries = [_tombstone(version), *(_settings_tombstones(state, subject) if len(versions) == 1 else ())]
    return RegistryDecision((*_keep_ids(state, subject), *entries), number)


def delete_owned_subject(state: RegistryState, subject: Subject) -> list[LogEntry]:
    """Return the records that delete a subject for good, which goes with the topic that owns it."""
    versions = state.versions(subject, deleted=True)
    for version in versions:
        _refuse_referenced(state, version, permanent=True, besides=subject)
    return [*_keep_ids(state, subject), *map(_tombstone, versions), *_settings_tombstones(state, subject)]


def decide_delete_context(state: RegistryState, context: str) -> RegistryDecision:
    """Delete a context without schemas."""
    if any(subject.context == context for subject in state.subjects):
        raise RegistryRefusal(42211, f"The specified context '{context}' is not empty.")
    if context == DEFAULT_CONTEXT or context not in state.declared_contexts:
        raise RegistryRefusal(404, f"Context '{context}' not found")
    scope = Subject(context, "")
    entries = (LogEntry(LogKey(log.CONTEXT, context=context), None), *_settings_tombstones(state, scope))
    return RegistryDecision(entries, None)


def _refuse_referenced(
    state: RegistryState, version: SchemaVersion, *, permanent: bool, besides: Subject | None = None
) -> None:
    for referrer in list_referrers(state, version, deleted=permanent):
        if referrer.subject != besides:
            raise reference_exists(version.subject, version.version)


def _refuse_associated(state: RegistryState, subject: Subject) -> None:
    if state.associations.of_subject(subject):
        raise subject_associated(subject)


def _keep_ids(state: RegistryState, subject: Subject) -> list[LogEntry]:
    """Write down the largest id before a schema that may have it goes, unless the topic says it already."""
    context = subject.context
    if state.id_floors.get(context, 0) >= state.context(context).id_max:
        return []
    return [state.id_floors_entry(context)]


def _tombstone(version: SchemaVersion) -> LogEntry:
    return LogEntry(LogKey(log.SCHEMA, str(version.subject), version.version), None)


def _settings_tombstones(state: RegistryState, subject: Subject) -> list[LogEntry]:
    """Config and mode go with the last version: a new subject of that name begins without them."""
    kinds = [kind for kind, settings in ((log.CONFIG, state.configs), (log.MODE, state.modes)) if subject in settings]
    return [LogEntry(LogKey(kind, str(subject)), None) for kind in kinds]
