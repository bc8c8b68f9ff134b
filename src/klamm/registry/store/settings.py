"""Changes of config and mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from klamm.registry.store import log_records as log
from klamm.registry.store.contracts import parse_metadata, parse_rule_set
from klamm.registry.store.log_records import LogEntry, LogKey, RegistryDecision
from klamm.registry.store.refusals import (
    LEVELS,
    MODES,
    RegistryRefusal,
    invalid_level,
    invalid_mode,
    not_permitted,
    subject_not_found,
)
from klamm.registry.store.scopes import DEFAULT_MODE, effective_mode, require_writable
from klamm.registry.store.state import RegistryState, in_scope
from klamm.registry.store.subjects import Subject, check_subject

POLICIES: Final = ("STRICT", "LENIENT", "LOGICAL")
_TEXTS: Final = ("alias", "compatibilityGroup")
_FLAGS: Final = ("normalize", "validateFields", "validateNewSchemas", "validateRules")
_METADATA: Final = ("defaultMetadata", "overrideMetadata")
_RULE_SETS: Final = ("defaultRuleSet", "overrideRuleSet")


def parse_config(body: Mapping[str, Any]) -> dict[str, Any]:
    """Check the fields of a config; None clears one. PUT says `compatibility` for what GET calls compatibilityLevel."""
    config: dict[str, Any] = {}
    for name in ("compatibility", "compatibilityLevel"):
        if name in body:
            config["compatibilityLevel"] = _choice(body[name], LEVELS, invalid_level())
    if "compatibilityPolicy" in body:
        refusal = RegistryRefusal(42203, f"Invalid compatibility policy. Valid values are {', '.join(POLICIES)}")
        config["compatibilityPolicy"] = _choice(body["compatibilityPolicy"], POLICIES, refusal)
    for name in _TEXTS:
        if name in body:
            config[name] = None if body[name] is None else str(body[name])
    for name in _FLAGS:
        if name in body:
            config[name] = None if body[name] is None else str(body[name]).lower() == "true"
    for name in _METADATA:
        if name in body:
            config[name] = parse_metadata(body[name])
    for name in _RULE_SETS:
        if name in body:
            config[name] = parse_rule_set(body[name])
    return config


def _choice(value: Any, choices: tuple[str, ...], refusal: RegistryRefusal) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value.upper() not in choices:
        raise refusal
    return value.upper()


def decide_put_config(state: RegistryState, subject: Subject | None, changes: Mapping[str, Any]) -> RegistryDecision:
    """Merge changes into a config; the answer is what was changed."""
    _check_scope(subject)
    require_writable(state, subject)
    merged = {**state.configs.get(subject, {}), **changes}
    config = {name: value for name, value in merged.items() if value is not None}
    entry = LogEntry(_key(log.CONFIG, subject), config)
    return RegistryDecision((entry,), {name: value for name, value in changes.items() if value is not None})


def decide_delete_config(state: RegistryState, subject: Subject | None, default_level: str) -> RegistryDecision:
    """Delete a config; the answer is the old one."""
    require_writable(state, subject)
    config = state.configs.get(subject)
    if config is None:
        if subject is not None:
            raise subject_not_found(subject)
        return RegistryDecision((), {"compatibilityLevel": default_level})
    return RegistryDecision((LogEntry(_key(log.CONFIG, subject), None),), config)


def decide_put_mode(state: RegistryState, subject: Subject | None, mode: Any, *, force: bool) -> RegistryDecision:
    """Set a mode; the answer is the mode."""
    _check_scope(subject)
    if not isinstance(mode, str) or mode.upper() not in MODES:
        raise invalid_mode()
    mode = mode.upper()
    if mode == "FORWARD" and subject is not None:
        raise not_permitted("The mode FORWARD is for the whole registry only")
    entries = [LogEntry(_key(log.MODE, subject), _mode_value(subject, mode))]
    if mode == "IMPORT" and effective_mode(state, subject) != "IMPORT":
        inside = [name for name in state.subjects if in_scope(name, subject)]
        if not force and any(state.versions(name) for name in inside):
            raise not_permitted("Cannot import since found existing subjects")
        # Ids of deleted schemas may be given to others by the import; before the mode, as other registries do.
        entries = [
            *(LogEntry(_key(log.CLEAR_SUBJECT, name), {"subject": str(name)}) for name in inside),
            *entries,
        ]
    return RegistryDecision(tuple(entries), mode)


def decide_delete_mode(state: RegistryState, subject: Subject, *, recursive: bool) -> RegistryDecision:
    """Delete the mode of a subject, with `recursive` also those of all subjects of a context; answers the old one."""
    mode = state.modes.get(subject)
    inside = [
        name for name in state.modes if name not in (None, subject) and name is not None and in_scope(name, subject)
    ]
    if mode is None and not (recursive and inside):
        raise subject_not_found(subject)
    entries = [LogEntry(_key(log.MODE, name), None) for name in (inside if recursive else ())]
    if mode is not None:
        entries.append(LogEntry(_key(log.MODE, subject), None))
    return RegistryDecision(tuple(entries), mode or DEFAULT_MODE)


def decide_delete_global_mode(state: RegistryState, *, recursive: bool) -> RegistryDecision:
    """Delete the mode of the whole registry, with `recursive` all modes; answers the old one."""
    mode = state.modes.get(None)
    scopes = list(state.modes) if recursive else [None] if mode is not None else []
    return RegistryDecision(tuple(LogEntry(_key(log.MODE, scope), None) for scope in scopes), mode or DEFAULT_MODE)


def _mode_value(subject: Subject | None, mode: str) -> dict[str, Any]:
    return {"mode": mode} if subject is None else {"subject": str(subject), "mode": mode}


def _check_scope(subject: Subject | None) -> None:
    if subject is not None and not subject.is_context:
        check_subject(subject)


def _key(keytype: str, subject: Subject | None) -> LogKey:
    return LogKey(keytype, None if subject is None else str(subject))
