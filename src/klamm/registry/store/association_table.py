"""Which subjects are associated with which topics, by resource, by name and by subject; changed by replay alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.registry.store.log_records import ASSOCIATION, TENANT, LogEntry, LogKey, ResourceKey
from klamm.registry.store.subjects import Subject, parse_subject

STRONG: Final = "STRONG"
"""The topic owns the subject: both are created together, and deleted together."""
WEAK: Final = "WEAK"
"""The topic uses a subject that others may use, too."""
ANY_NAMESPACE: Final = "-"


@dataclass(frozen=True, slots=True)
class Association:
    """A subject of the key or the value of one topic."""

    resource: ResourceKey
    resource_id: str
    subject: Subject
    guid: str
    lifecycle: str
    create_ms: int | None = None
    update_ms: int | None = None

    @property
    def frozen(self) -> bool:
        """Whether it ends with its topic only; a topic cannot drop a subject that it owns."""
        return self.lifecycle == STRONG

    @property
    def association_type(self) -> str:
        """Of the key, or of the value."""
        return self.resource.association_type

    @property
    def log_key(self) -> LogKey:
        """The key of its record."""
        return LogKey(ASSOCIATION, str(self.subject), resource=self.resource)

    def entry(self) -> LogEntry:
        """Return its record, with the fields that Confluent's registry writes."""
        value = {"tenant": TENANT, **self.to_json(), "frozen": self.frozen}
        value.pop("updateTs", None)
        return LogEntry(self.log_key, value)

    def to_json(self) -> dict[str, Any]:
        """Return the fields of answers."""
        fields: dict[str, Any] = {
            "subject": str(self.subject),
            "guid": self.guid,
            "resourceName": self.resource.name,
            "resourceNamespace": self.resource.namespace,
            "resourceId": self.resource_id,
            "resourceType": self.resource.resource_type,
            "associationType": self.association_type,
            "lifecycle": self.lifecycle,
            "frozen": self.frozen,
        }
        if self.create_ms is not None:
            fields["createTs"] = self.create_ms
        if self.update_ms is not None:
            fields["updateTs"] = self.update_ms
        return fields


@dataclass(frozen=True, slots=True)
class AssociationFilter:
    """Which associations a query lists; empty fields match all."""

    resource_type: str = ""
    association_types: tuple[str, ...] = ()
    lifecycle: str = ""

    def matches(self, association: Association) -> bool:
        """Whether an association is listed."""
        return (
            self.resource_type in ("", association.resource.resource_type)
            and (not self.association_types or association.association_type in self.association_types)
            and self.lifecycle in ("", association.lifecycle)
        )


@dataclass(slots=True)
class AssociationTable:
    """All associations. Serializers request those of their topic, so they are indexed by its name, too."""

    _by_key: dict[LogKey, Association] = field(default_factory=dict)
    _by_name: dict[str, dict[LogKey, None]] = field(default_factory=dict)
    """Keys by index; a dict keeps their order."""
    _by_resource: dict[str, dict[LogKey, None]] = field(default_factory=dict)
    _by_subject: dict[Subject, dict[LogKey, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_key)

    def apply(self, key: LogKey, value: dict[str, Any] | None, timestamp_ms: int | None) -> None:
        """Replay one record; a value of None deletes."""
        assert key.resource is not None
        assert key.subject is not None
        association = None
        if value is not None:
            # Before anything is removed: a damaged record leaves the table as it was.
            association = Association(
                key.resource,
                str(value["resourceId"]),
                parse_subject(key.subject),
                str(value.get("guid") or ""),
                STRONG if str(value.get("lifecycle")).upper() == STRONG else WEAK,
                value.get("createTs") if isinstance(value.get("createTs"), int) else None,
                timestamp_ms,
            )
        before = self._by_key.pop(key, None)
        if before is not None:
            for index, name in self._places(before):
                del index[name][key]
                if not index[name]:
                    del index[name]
        if association is not None:
            self._by_key[key] = association
            for index, name in self._places(association):
                index.setdefault(name, {})[key] = None

    def _places(self, association: Association) -> tuple[tuple[dict[Any, dict[LogKey, None]], Any], ...]:
        return (
            (self._by_name, association.resource.name),
            (self._by_resource, association.resource_id),
            (self._by_subject, association.subject),
        )

    def of_subject(self, subject: Subject, wanted: AssociationFilter = AssociationFilter()) -> list[Association]:  # noqa: B008 - frozen
        """Return the associations of a subject."""
        return self._list(self._by_subject.get(subject, ()), wanted)

    def of_resource(self, resource_id: str, wanted: AssociationFilter = AssociationFilter()) -> list[Association]:  # noqa: B008 - frozen
        """Return the associations of a resource by its id."""
        return self._list(self._by_resource.get(resource_id, ()), wanted)

    def of_name(
        self,
        namespace: str,
        name: str,
        wanted: AssociationFilter = AssociationFilter(),  # noqa: B008 - frozen
    ) -> list[Association]:
        """Return the associations of resources of one name, in one namespace or, with `-`, in all."""
        listed = self._list(self._by_name.get(name, ()), wanted)
        return [item for item in listed if namespace in (ANY_NAMESPACE, item.resource.namespace)]

    def _list(self, keys: Iterable[LogKey], wanted: AssociationFilter) -> list[Association]:
        associations = [self._by_key[key] for key in keys]
        return sorted(filter(wanted.matches, associations), key=_order)


def _order(association: Association) -> tuple[Any, ...]:
    return association.resource, str(association.subject)
