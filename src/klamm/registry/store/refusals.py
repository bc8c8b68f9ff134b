"""Refusals of the registry, by the error codes that clients of Confluent's registry compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from klamm.http.refusals import HttpRefusal
from klamm.registry.store.log_records import INT_MAX

VERSION_MAX: Final = INT_MAX

LEVELS: Final = (
    "NONE",
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
)
MODES: Final = ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT", "FORWARD")


class RegistryRefusal(HttpRefusal):
    """A refused request; the first three digits of the error code are the HTTP status."""


def subject_not_found(subject: object) -> RegistryRefusal:
    """No live version of the subject."""
    return RegistryRefusal(40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> RegistryRefusal:
    """The subject has no such version."""
    return RegistryRefusal(40402, f"Version {version} not found.")


def schema_not_found(schema_id: object = None) -> RegistryRefusal:
    """No schema of this id or content."""
    return RegistryRefusal(40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def invalid_schema(reason: str) -> RegistryRefusal:
    """The schema cannot be parsed, or refers to one that cannot be resolved."""
    return RegistryRefusal(42201, f"Invalid schema: {reason}")


def empty_schema() -> RegistryRefusal:
    """A request without a schema that needs one."""
    return RegistryRefusal(42201, "Empty schema")


def already_deleted(name: str, error_code: int) -> RegistryRefusal:
    """A subject or version is deleted softly for the second time."""
    # Without a space, as Confluent's registry says it: programs compare the text.
    return RegistryRefusal(error_code, f"{name} was soft deleted.Set permanent=true to delete permanently")


def invalid_version(version: object) -> RegistryRefusal:
    """A version that is neither a positive int32, `latest` nor -1."""
    return RegistryRefusal(
        42202,
        f"The specified version '{version}' is not a valid version id."
        ' Allowed values are between [1, 2^31-1] and the string "latest"',
    )


def invalid_level() -> RegistryRefusal:
    """A compatibility level that does not exist."""
    # Word for word as Confluent's registry says it: programs compare the text.
    return RegistryRefusal(
        42203,
        "Invalid compatibility level. Valid values are none, backward, forward, full, backward_transitive,"
        " forward_transitive, and full_transitive",
    )


def invalid_mode() -> RegistryRefusal:
    """A mode that does not exist."""
    return RegistryRefusal(42204, f"Invalid mode. Valid values are {', '.join(MODES)}")


def not_permitted(reason: str) -> RegistryRefusal:
    """The mode forbids it."""
    return RegistryRefusal(42205, reason)


def reference_exists(subject: object, version: int) -> RegistryRefusal:
    """Another schema refers to the one that is to be deleted."""
    return RegistryRefusal(
        42206,
        f"One or more references exist to the schema {{magic=1,keytype=SCHEMA,subject={subject},version={version}}}.",
    )


def incompatible(subject: object, messages: Sequence[str]) -> RegistryRefusal:
    """The level of the subject forbids the change."""
    return RegistryRefusal(
        40901,
        f'Schema being registered is incompatible with an earlier schema for subject "{subject}",'
        f" details: [{', '.join(messages)}]",
    )


def reserved_fields(subject: object, messages: Sequence[str]) -> RegistryRefusal:
    """The schema has a field that metadata reserves, or reserves one no more."""
    return RegistryRefusal(
        40901,
        f'Schema being registered does not keep the reserved fields of subject "{subject}",'
        f" details: [{', '.join(messages)}]",
    )


# Associations


def association_not_found(resource: object) -> RegistryRefusal:
    """The resource has no association of the types that a request names."""
    return RegistryRefusal(40410, f"Association for '{resource}' not found.")


def resource_associated(association_type: str, resource: object) -> RegistryRefusal:
    """The resource has another association of this type."""
    return RegistryRefusal(
        40903, f"An association of type '{association_type}' already exists for resource '{resource}'"
    )


def subject_associated(subject: object) -> RegistryRefusal:
    """The subject is associated with a resource, and so cannot be owned by another one or deleted."""
    return RegistryRefusal(40904, f"An association already exists for subject '{subject}'")


def subject_owned(subject: object) -> RegistryRefusal:
    """A resource owns the subject."""
    return RegistryRefusal(40905, f"A strong association already exists for subject '{subject}'")


def no_live_version(subject: object) -> RegistryRefusal:
    """A subject without a live version cannot be associated."""
    return RegistryRefusal(40907, f"No active (non-deleted) version exists for subject '{subject}'")


def association_frozen(association_type: str, subject: object) -> RegistryRefusal:
    """The association ends with its topic only."""
    return RegistryRefusal(40908, f"The association of type '{association_type}' is frozen for subject '{subject}'")


def invalid_association(name: str, detail: str) -> RegistryRefusal:
    """A property of an association that is not valid."""
    return RegistryRefusal(
        42212, f"The association specified an invalid value for property: '{name}', detail: {detail}"
    )
