"""Which config and which mode count for a subject: its own, its context's, the global one, the server's default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from klamm.registry.store.refusals import not_permitted
from klamm.registry.store.state import RegistryState
from klamm.registry.store.subjects import DEFAULT_CONTEXT, GLOBAL_CONTEXT, Subject, parse_subject

DEFAULT_LEVEL: Final = "BACKWARD"
DEFAULT_MODE: Final = "READWRITE"
IMPORTING: Final = ("IMPORT", "FORWARD")
"""Modes in which ids and versions are given, and nothing is checked."""
ALIAS: Final = "alias"
_READ_ONLY: Final = ("READONLY", "READONLY_OVERRIDE")
_GLOBAL: Final = Subject(GLOBAL_CONTEXT, "")


def scopes_of(subject: Subject | None) -> list[Subject | None]:
    """Return the scopes of a subject, the nearest first."""
    scopes: list[Subject | None] = []
    if subject is not None:
        if subject.name or subject.context == DEFAULT_CONTEXT:
            scopes.append(subject)
        if subject.context not in (DEFAULT_CONTEXT, GLOBAL_CONTEXT):
            scopes.append(Subject(subject.context, ""))
    # The global config is that of the default context; `:.__GLOBAL:` is the scope of all contexts.
    return [*scopes, None, _GLOBAL]


def effective_config(state: RegistryState, subject: Subject | None, level: str = DEFAULT_LEVEL) -> dict[str, Any]:
    """Return the config in effect: each field from the nearest scope that has it; an alias is never inherited."""
    config: dict[str, Any] = {"compatibilityLevel": level}
    for scope in reversed(scopes_of(subject)):
        config |= {name: value for name, value in state.configs.get(scope, {}).items() if name != ALIAS}
    own = state.configs.get(subject, {})
    if ALIAS in own:
        config[ALIAS] = own[ALIAS]
    return config


def validates_new(config: Mapping[str, Any]) -> bool:
    """Whether new schemas are checked more strictly than stored ones; the config can turn it off."""
    return bool(config.get("validateNewSchemas", True))


def effective_mode(state: RegistryState, subject: Subject | None) -> str:
    """Return the mode in effect."""
    for scope in scopes_of(subject):
        if scope in state.modes:
            return state.modes[scope]
    return DEFAULT_MODE


def require_writable(state: RegistryState, subject: Subject | None) -> None:
    """Refuse changes where the mode is read-only, also through READONLY_OVERRIDE of the global scope."""
    read_only = effective_mode(state, subject) in _READ_ONLY or state.modes.get(None) == "READONLY_OVERRIDE"
    if read_only:
        name = "The registry" if subject is None else f"Subject {subject}"
        raise not_permitted(f"{name} is in read-only mode")


def follow_alias(state: RegistryState, subject: Subject) -> Subject:
    """Return the subject that calls on this one go to. One step: an alias of an alias is not followed."""
    alias = state.configs.get(subject, {}).get(ALIAS)
    return subject if not alias else parse_subject(alias, subject.context)
