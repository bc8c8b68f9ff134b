"""Creating and removing ACLs: what is written, and that filters remove exactly what they select."""

import random
from itertools import product

import pytest

from klamm.controller import acls
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from klamm.protocol.messages.metadata_records import RemoveAccessControlEntryRecord
from klamm.security.core.acl import entry_from_record, filter_from_codes


def creation(name="orders", **changes):
    fields = {
        "resource_type": AclResourceType.TOPIC,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": AclPermission.ALLOW,
    }
    return AclCreation(**{**fields, **changes})


def acl_filter(**changes):
    fields = {
        "resource_type_filter": AclResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": AclOperation.ANY,
        "permission_type": AclPermission.ANY,
    }
    return DeleteAclsFilter(**{**fields, **changes})


def create(one, *creations):
    return one.commit(one.controller.create_acls(CreateAclsRequest(creations=list(creations))))


def listed(one):
    return {entry_from_record(record) for record in one.image.acls.values()}


@pytest.fixture
def one(cluster):
    return cluster(1)


def test_an_entry_is_written_once(one):
    response = create(one, creation(), creation(), creation("payments"))
    assert [result.error_code for result in response.results] == [0, 0, 0]
    assert len(one.image.acls) == 2
    decision = one.controller.create_acls(CreateAclsRequest(creations=[creation()]))
    assert (decision.records, decision.response.results[0].error_code) == ((), 0)


def test_a_request_with_too_many_entries_changes_nothing(one):
    request = CreateAclsRequest(creations=[creation(f"t{number}") for number in range(acls.RECORDS_MAX + 1)])
    with pytest.raises(KlammError) as refusal:
        one.controller.create_acls(request)
    assert refusal.value.code is ErrorCode.POLICY_VIOLATION


def test_filters_remove_exactly_what_they_select(one):
    chance = random.Random(3)
    names = ("a", "ab", "abc", "*", "b")
    create(
        one,
        *(
            creation(name, resource_pattern_type=pattern, principal=principal)
            for name, pattern, principal in product(
                names, (PatternType.LITERAL, PatternType.PREFIXED), ("User:alice", "User:bob")
            )
        ),
    )
    for _ in range(100):
        wanted = acl_filter(
            resource_name_filter=chance.choice([None, *names, "abcd"]),
            pattern_type_filter=chance.choice(list(PatternType)[1:]),
            principal_filter=chance.choice([None, "User:alice", "User:carol"]),
        )
        codes = filter_from_codes(
            wanted.resource_type_filter,
            wanted.resource_name_filter,
            wanted.pattern_type_filter,
            wanted.principal_filter,
            None,
            AclOperation.ANY,
            AclPermission.ANY,
        )
        decision = one.controller.delete_acls(DeleteAclsRequest(filters=[wanted, wanted]))
        expected = {entry_id for entry_id, record in one.image.acls.items() if codes.matches(entry_from_record(record))}
        removed = [record.id for record in decision.records if isinstance(record, RemoveAccessControlEntryRecord)]
        assert sorted(removed) == sorted(expected), wanted
        assert {len(result.matching_acls) for result in decision.response.filter_results} == {len(expected)}


def test_removed_entries_are_gone(one):
    create(one, creation(), creation("payments"))
    one.commit(one.controller.delete_acls(DeleteAclsRequest(filters=[acl_filter(resource_name_filter="orders")])))
    assert {entry.resource_name for entry in listed(one)} == {"payments"}


def test_filters_that_compare_too_many_entries_are_refused(one, monkeypatch):
    create(one, *(creation(f"t{number}") for number in range(50)))
    monkeypatch.setattr(acls, "COMPARISONS_MAX", 120)
    broad = [acl_filter(host_filter=f"10.0.0.{number}") for number in range(3)]
    with pytest.raises(KlammError) as refusal:
        one.controller.delete_acls(DeleteAclsRequest(filters=broad))
    assert refusal.value.code is ErrorCode.POLICY_VIOLATION
    exact = [acl_filter(resource_name_filter=f"t{number}") for number in range(50)]
    assert len(one.controller.delete_acls(DeleteAclsRequest(filters=exact)).records) == 50
