"""Creation and removal of ACLs."""

from collections.abc import Sized

from klamm.controller.context import ControllerContext, ControllerDecision
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
    AccessControlEntry,
    EntryFilter,
    entry_from_codes,
    entry_from_record,
    filter_from_codes,
    find_fault,
)

RECORDS_MAX = 10_000
"""Kafka's limit of the records that one request may write."""


def create_acls(context: ControllerContext, request: CreateAclsRequest) -> ControllerDecision[CreateAclsResponse]:
    """Create every valid ACL of the request; one that exists already succeeds without a record."""
    existing = {entry_from_record(record) for record in context.image.acls.values()}
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
    entries = [(entry_id, entry_from_record(record)) for entry_id, record in context.image.acls.items()]
    for requested in request.filters:
        entry_filter = _read_filter(requested)
        unknown = entry_filter.find_unknown()
        if unknown is not None:
            results.append(
                DeleteAclsFilterResult(error_code=ErrorCode.INVALID_REQUEST, error_message=f"Unknown {unknown}.")
            )
            continue
        selected: dict[AccessControlEntry, None] = {}
        for entry_id, entry in entries:
            if entry_filter.matches(entry):
                selected[entry] = None
                # Two filters may select the same entry, which is removed once.
                removed[entry_id] = RemoveAccessControlEntryRecord(id=entry_id)
        results.append(DeleteAclsFilterResult(matching_acls=[_describe(entry) for entry in selected]))
    _check_number(removed)
    return ControllerDecision(tuple(removed.values()), DeleteAclsResponse(filter_results=results))


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
