"""Creation and removal of ACLs."""

from collections.abc import Mapping, Sized

from klamm.controller.context import ControllerContext, ControllerDecision
from klamm.model.acls import PatternType
from klamm.model.errors import ErrorCode, KlammError
from klamm.model.ids import Uuid
from klamm.protocol.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from klamm.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    MetadataRecord,
    RemoveAccessControlEntryRecord,
)
from klamm.security.core.acl import (
    WILDCARD,
    AccessControlEntry,
    EntryFilter,
    entry_from_codes,
    entry_from_record,
    filter_from_codes,
    find_fault,
)

RECORDS_MAX = 10_000
"""Kafka's limit of the records that one request may write."""
COMPARISONS_MAX = 200_000
"""Comparisons of filters and ACLs in one request: a fifth of a second. Kafka has no limit."""


def create_acls(context: ControllerContext, request: CreateAclsRequest) -> ControllerDecision[CreateAclsResponse]:
    """Create every valid ACL of the request; one that exists already succeeds without a record."""
    names = {creation.resource_name for creation in request.creations}
    # Only those that a creation may equal: most of thousands are for other resources.
    existing = {entry_from_record(record) for record in context.image.acls.values() if record.resource_name in names}
    used_ids: set[Uuid] = set()
    records: list[MetadataRecord] = []
    results = []
    for creation in request.creations:
        entry = _read_creation(creation)
        fault = find_fault(entry)
        if fault is not None:
            results.append(AclCreationResult(error_code=ErrorCode.INVALID_REQUEST, error_message=fault))
            continue
        results.append(AclCreationResult())
        if entry not in existing:
            existing.add(entry)
            entry_id = _new_id(context, used_ids)
            used_ids.add(entry_id)
            records.append(_record(entry_id, entry))
    _check_number(records)
    return ControllerDecision(tuple(records), CreateAclsResponse(results=results))


def delete_acls(context: ControllerContext, request: DeleteAclsRequest) -> ControllerDecision[DeleteAclsResponse]:
    """Remove the ACLs that any filter selects; each filter's result lists all that it selects."""
    removed: dict[Uuid, MetadataRecord] = {}
    results = []
    index = _EntryIndex(context.image.acls)
    for requested in request.filters:
        entry_filter = _read_filter(requested)
        unknown = entry_filter.find_unknown()
        if unknown is not None:
            results.append(
                DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=f"Unknown {unknown}.")
            )
            continue
        selected: dict[AccessControlEntry, None] = {}
        for entry_id, entry in index.candidates(entry_filter):
            if entry_filter.matches(entry):
                selected[entry] = None
                # Two filters may select the same entry, which is removed once.
                removed[entry_id] = RemoveAccessControlEntryRecord(id=entry_id)
        results.append(DeleteAclsFilterResult(matching_acls=[_describe(entry) for entry in selected]))
    _check_number(removed)
    return ControllerDecision(tuple(removed.values()), DeleteAclsResponse(filter_results=results))


_Entries = list[tuple[Uuid, AccessControlEntry]]


class _EntryIndex:
    """Finds the entries that a filter may select: thousands of filters must not scan thousands of entries each."""

    def __init__(self, records: Mapping[Uuid, AccessControlEntryRecord]) -> None:
        self._all: _Entries = []
        self._by_name: dict[str, _Entries] = {}
        self._by_principal: dict[str, _Entries] = {}
        self._comparisons = 0
        for entry_id, record in records.items():
            entry = entry_from_record(record)
            self._all.append((entry_id, entry))
            self._by_name.setdefault(entry.resource_name, []).append((entry_id, entry))
            self._by_principal.setdefault(entry.principal, []).append((entry_id, entry))

    def candidates(self, entry_filter: EntryFilter) -> _Entries:
        """Return all entries that the filter may select; POLICY_VIOLATION when a request compares too many."""
        name = entry_filter.resource_name
        if name is not None and entry_filter.pattern_type is PatternType.MATCH:
            # The name itself and its prefixes, one of which may be the wildcard's character.
            names = {name[:length] for length in range(1, len(name) + 1)} | {WILDCARD}
            entries = [item for part in names for item in self._by_name.get(part, ())]
        elif name is not None:
            entries = self._by_name.get(name, [])
        elif entry_filter.principal is not None:
            entries = self._by_principal.get(entry_filter.principal, [])
        else:
            entries = self._all
        self._comparisons += len(entries)
        if self._comparisons > COMPARISONS_MAX:
            raise KlammError(
                ErrorCode.POLICY_VIOLATION,
                "The filters of the request select from too many ACLs; name resources or principals, or split it.",
            )
        return entries


def _check_number(records: Sized) -> None:
    # No partial result: that only some were changed would be easy to miss.
    if len(records) > RECORDS_MAX:
        raise KlammError(
            ErrorCode.POLICY_VIOLATION, f"One request may create or remove {RECORDS_MAX} ACLs at most; split it."
        )


def _new_id(context: ControllerContext, used_ids: set[Uuid]) -> Uuid:
    while True:
        entry_id = Uuid(context.random.randbytes(16))
        if entry_id not in context.image.acls and entry_id not in used_ids:
            return entry_id


def _read_creation(creation: AclCreation) -> AccessControlEntry:
    return entry_from_codes(
        creation.resource_type,
        creation.resource_name,
        creation.resource_pattern_type,
        creation.principal,
        creation.host,
        creation.operation,
        creation.permission_type,
    )


def _read_filter(requested: DeleteAclsFilter) -> EntryFilter:
    return filter_from_codes(
        requested.resource_type_filter,
        requested.resource_name_filter,
        requested.pattern_type_filter,
        requested.principal_filter,
        requested.host_filter,
        requested.operation,
        requested.permission_type,
    )


def _record(entry_id: Uuid, entry: AccessControlEntry) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=entry_id,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )


def _describe(entry: AccessControlEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.resource_name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
