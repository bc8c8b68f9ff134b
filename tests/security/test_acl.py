"""ACL entries and filters: what matches what."""

import pytest

from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclPermission as Permission
from klamm.model.acls import AclResourceType as Type
from klamm.model.acls import PatternType as Pattern
from klamm.security.core.acl import AccessControlEntry, EntryFilter, entry_from_codes, filter_from_codes, find_fault


def entry(
    name: str = "orders",
    pattern: Pattern = Pattern.LITERAL,
    kind: Type = Type.TOPIC,
    principal: str = "User:alice",
    operation: Op = Op.READ,
    permission: Permission = Permission.ALLOW,
) -> AccessControlEntry:
    return AccessControlEntry(kind, name, pattern, principal, "*", operation, permission)


@pytest.mark.parametrize(
    ("pattern", "name", "resource", "covered"),
    [
        (Pattern.LITERAL, "orders", "orders", True),
        (Pattern.LITERAL, "orders", "orders-eu", False),
        (Pattern.LITERAL, "*", "orders", True),
        (Pattern.PREFIXED, "ord", "orders", True),
        (Pattern.PREFIXED, "orders", "orders", True),
        (Pattern.PREFIXED, "orders", "ord", False),
        # The character, not the wildcard.
        (Pattern.PREFIXED, "*", "orders", False),
        (Pattern.PREFIXED, "*", "*orders", True),
    ],
)
def test_patterns_cover_names(pattern: Pattern, name: str, resource: str, covered: bool) -> None:
    assert entry(name, pattern).covers(resource) is covered


def test_a_filter_of_type_match_selects_what_would_apply() -> None:
    entries = [
        entry("orders"),
        entry("*"),
        entry("ord", Pattern.PREFIXED),
        entry("orders-eu", Pattern.PREFIXED),
        entry("orders", kind=Type.GROUP),
    ]
    match = EntryFilter(Type.TOPIC, "orders", Pattern.MATCH)
    assert [item.resource_name for item in entries if match.matches(item)] == ["orders", "*", "ord"]
    literal = EntryFilter(Type.TOPIC, "orders", Pattern.LITERAL)
    assert [item.resource_name for item in entries if literal.matches(item)] == ["orders"]
    by_name = EntryFilter(resource_name="orders")
    assert [item.resource_type for item in entries if by_name.matches(item)] == [Type.TOPIC, Type.GROUP]


def test_a_filter_compares_principal_host_operation_and_permission() -> None:
    assert EntryFilter().matches(entry())
    assert EntryFilter(principal="User:alice", host="*", operation=Op.READ, permission=Permission.ALLOW).matches(
        entry()
    )
    assert not EntryFilter(principal="User:bob").matches(entry())
    assert not EntryFilter(host="10.0.0.1").matches(entry())
    assert not EntryFilter(operation=Op.ALL).matches(entry())
    assert not EntryFilter(permission=Permission.DENY).matches(entry())


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (entry(""), "empty resource name"),
        (entry("other", kind=Type.CLUSTER), "only valid name"),
        (entry(kind=Type.ANY), "Invalid resourceType"),
        (entry(kind=Type.UNKNOWN), "Invalid resourceType"),
        (entry(operation=Op.ANY), "Invalid operation"),
        (entry(permission=Permission.ANY), "Invalid permissionType"),
        (entry(pattern=Pattern.MATCH), "Invalid patternType"),
        (entry(principal="alice"), "no colon"),
    ],
)
def test_invalid_entries_have_a_reason(fault: AccessControlEntry, words: str) -> None:
    assert words in (find_fault(fault) or "")


def test_valid_entries_have_none() -> None:
    assert find_fault(entry()) is None
    assert find_fault(entry("kafka-cluster", kind=Type.CLUSTER)) is None


def test_codes_of_later_versions_become_unknown() -> None:
    assert entry_from_codes(99, "x", 99, "User:a", "*", 99, 99)[:1] == (Type.UNKNOWN,)
    assert filter_from_codes(99, None, 1, None, None, 1, 1).find_unknown() == "patternFilter"
    assert filter_from_codes(1, None, 1, None, None, 99, 1).find_unknown() == "entryFilter"
    assert filter_from_codes(1, None, 1, None, None, 1, 1).find_unknown() is None


def test_the_text_is_that_of_audit_lines() -> None:
    assert str(entry()) == (
        "StandardAcl(resourceType=TOPIC, resourceName=orders, patternType=LITERAL, principal=User:alice, host=*, "
        "operation=READ, permissionType=ALLOW)"
    )
