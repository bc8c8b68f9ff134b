"""Decisions of the authorizer, beside a model that scans every entry."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.model.acls import AclOperation as Op
from klamm.model.acls import AclPermission as Permission
from klamm.model.acls import AclResourceType as Type
from klamm.model.acls import PatternType as Pattern
from klamm.model.ids import Uuid
from klamm.model.topic_names import NAME_LENGTH_MAX
from klamm.security.core import authorizer as authorizer_module
from klamm.security.core.acl import AccessControlEntry, EntryFilter
from klamm.security.core.authorizer import StandardAuthorizer
from klamm.security.core.principal import Principal

ALICE = Principal("User", "alice")
BOB = Principal("User", "bob")
HOST = "10.0.0.1"


def entry(
    name: str = "orders",
    operation: Op = Op.READ,
    permission: Permission = Permission.ALLOW,
    *,
    principal: str = "User:alice",
    host: str = "*",
    pattern: Pattern = Pattern.LITERAL,
    kind: Type = Type.TOPIC,
) -> AccessControlEntry:
    return AccessControlEntry(kind, name, pattern, principal, host, operation, permission)


def make(
    *entries: AccessControlEntry, allow_everyone: bool = False, super_users: tuple[str, ...] = ()
) -> StandardAuthorizer:
    authorizer = StandardAuthorizer(super_users=super_users, allow_everyone_if_no_acl_found=allow_everyone)
    authorizer.update({Uuid(index.to_bytes(16)): item for index, item in enumerate(entries, 1)})
    return authorizer


def may(authorizer: StandardAuthorizer, operation: Op, name: str = "orders", who: Principal = ALICE) -> bool:
    return authorizer.authorize(who, HOST, operation, Type.TOPIC, name).allowed


def test_an_allow_entry_allows_its_principal_only() -> None:
    authorizer = make(entry())
    assert may(authorizer, Op.READ)
    assert not may(authorizer, Op.READ, who=BOB)
    assert not may(authorizer, Op.WRITE)
    assert not may(authorizer, Op.READ, "payments")


def test_deny_comes_first() -> None:
    authorizer = make(entry(operation=Op.ALL), entry("o", Op.READ, Permission.DENY, pattern=Pattern.PREFIXED))
    verdict = authorizer.authorize(ALICE, HOST, Op.READ, Type.TOPIC, "orders")
    assert not verdict.allowed
    assert verdict.entry is not None
    assert verdict.entry.resource_name == "o"
    assert may(authorizer, Op.WRITE)


def test_read_write_delete_and_alter_imply_describe() -> None:
    for operation in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER):
        assert may(make(entry(operation=operation)), Op.DESCRIBE), operation
    for operation in (Op.CREATE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS):
        assert not may(make(entry(operation=operation)), Op.DESCRIBE), operation
    assert may(make(entry(operation=Op.ALTER_CONFIGS)), Op.DESCRIBE_CONFIGS)


def test_deny_implies_nothing() -> None:
    authorizer = make(entry(operation=Op.DESCRIBE), entry(operation=Op.READ, permission=Permission.DENY))
    assert may(authorizer, Op.DESCRIBE)


def test_hosts_are_compared_as_text() -> None:
    authorizer = make(entry(host="10.0.0.1"))
    assert authorizer.authorize(ALICE, "10.0.0.1", Op.READ, Type.TOPIC, "orders").allowed
    assert not authorizer.authorize(ALICE, "10.0.0.2", Op.READ, Type.TOPIC, "orders").allowed


def test_the_type_of_a_principal_matters() -> None:
    authorizer = make(entry(principal="Group:alice"))
    assert not may(authorizer, Op.READ)


def test_super_users_may_do_everything() -> None:
    authorizer = make(entry(permission=Permission.DENY), super_users=("User:alice",))
    verdict = authorizer.authorize(ALICE, HOST, Op.READ, Type.TOPIC, "orders")
    assert (verdict.allowed, verdict.rule) == (True, "SuperUser")


def test_allow_everyone_ends_with_the_first_entry_for_the_resource() -> None:
    authorizer = make(entry("payments", principal="User:carol"), allow_everyone=True)
    assert may(authorizer, Op.READ, "orders")
    assert not may(authorizer, Op.READ, "payments")


def test_until_the_log_is_loaded_only_super_users_pass() -> None:
    authorizer = StandardAuthorizer(super_users=["User:alice"], allow_everyone_if_no_acl_found=True, ready=False)
    assert may(authorizer, Op.READ)
    assert not may(authorizer, Op.READ, who=BOB)
    assert not authorizer.authorize_any(BOB, HOST, Op.WRITE, Type.TOPIC)
    authorizer.ready = True
    assert may(authorizer, Op.READ, who=BOB)


def test_cve_2024_27309_removing_one_of_two_acls_of_a_resource_keeps_the_other() -> None:
    first, second = Uuid(b"1" * 16), Uuid(b"2" * 16)
    pairs = [
        (entry(principal="User:bob"), entry(permission=Permission.DENY)),
        (entry(), entry()),  # the same entry under two ids
        (entry(operation=Op.READ), entry(operation=Op.WRITE)),
        (entry("o", pattern=Pattern.PREFIXED), entry("o", permission=Permission.DENY, pattern=Pattern.PREFIXED)),
    ]
    for left, right in pairs:
        for kept, removed in ((left, right), (right, left)):
            authorizer = StandardAuthorizer(allow_everyone_if_no_acl_found=True)
            authorizer.update({first: kept, second: removed})
            authorizer.update({second: None})
            assert authorizer.find(EntryFilter()) == [kept]
            alone = make(kept, allow_everyone=True)
            for who in (ALICE, BOB):
                for operation in (Op.READ, Op.WRITE):
                    assert may(authorizer, operation, who=who) == may(alone, operation, who=who), (kept, removed)


def test_any_topic_needs_an_allow_that_no_deny_covers() -> None:
    def any_write(*entries: AccessControlEntry, allow_everyone: bool = False) -> bool:
        return make(*entries, allow_everyone=allow_everyone).authorize_any(ALICE, HOST, Op.WRITE, Type.TOPIC)

    allow = entry("orders", Op.WRITE)
    allow_prefix = entry("ord", Op.WRITE, pattern=Pattern.PREFIXED)
    assert any_write(allow)
    assert not any_write()
    assert any_write(allow_everyone=True)
    assert not any_write(entry("orders", Op.READ))
    assert not any_write(allow, entry("*", Op.WRITE, Permission.DENY))
    assert not any_write(allow, entry("orders", Op.ALL, Permission.DENY))
    assert not any_write(allow, entry("or", Op.WRITE, Permission.DENY, pattern=Pattern.PREFIXED))
    assert any_write(allow_prefix, entry("orders", Op.WRITE, Permission.DENY))
    assert not any_write(allow_prefix, entry("ord", Op.WRITE, Permission.DENY, pattern=Pattern.PREFIXED))
    assert any_write(entry("*", Op.WRITE), entry("orders", Op.WRITE, Permission.DENY))
    assert not any_write(entry("orders", Op.WRITE, principal="User:bob"))


def test_whether_any_resource_allows_an_operation_is_remembered_until_entries_change() -> None:
    authorizer = make(entry("orders", Op.WRITE), entry("payments", Op.WRITE, principal="User:carol"))

    def any_write(who: Principal) -> bool:
        return authorizer.authorize_any(who, HOST, Op.WRITE, Type.TOPIC)

    assert any_write(ALICE)
    assert not any_write(BOB)
    patterns, authorizer._of_principals = authorizer._of_principals, {}
    assert any_write(ALICE), "decided again"
    authorizer._of_principals = patterns
    authorizer.update(
        {Uuid((1).to_bytes(16)): None, Uuid((2).to_bytes(16)): entry("p", Op.WRITE, principal="User:bob")}
    )
    assert not any_write(ALICE)
    assert any_write(BOB)


def test_whether_any_resource_allows_an_operation_concerns_only_entries_of_the_principal() -> None:
    """With ten thousand entries of others, every start of an idempotent producer took milliseconds of the loop."""
    others = [entry(f"t{number}", Op.WRITE, principal=f"User:u{number}") for number in range(2_000)]
    authorizer = make(*others, entry("orders", Op.WRITE), entry("all", Op.WRITE, principal="User:*"))
    assert len(list(authorizer._entries_of(Type.TOPIC, "User:alice"))) == 2
    assert authorizer.authorize_any(ALICE, HOST, Op.WRITE, Type.TOPIC)


def test_decisions_are_forgotten_when_entries_change() -> None:
    authorizer = make(entry())
    assert may(authorizer, Op.READ)
    authorizer.update({Uuid((1).to_bytes(16)): None})
    assert not may(authorizer, Op.READ)


def test_the_memory_of_decisions_is_bounded() -> None:
    authorizer = make(entry("*"))
    for index in range(authorizer_module.DECISIONS_MAX + 10):
        assert may(authorizer, Op.READ, f"t{index}")
    assert len(authorizer._decisions) <= authorizer_module.DECISIONS_MAX


def test_decisions_about_names_that_no_topic_can_have_are_not_remembered() -> None:
    """A group id may have 32 KB, and peers without rights may ask for any: a number of entries bounds no bytes."""
    authorizer = make(entry("*"))
    for index in range(100):
        assert may(authorizer, Op.READ, f"{index:03d}" + "x" * NAME_LENGTH_MAX)
    assert not authorizer._decisions
    assert may(authorizer, Op.READ, "x" * NAME_LENGTH_MAX)
    assert len(authorizer._decisions) == 1


_NAMES = ("a", "ab", "abc", "b", "*", "*a")
_ENTRIES = st.builds(
    AccessControlEntry,
    st.sampled_from([Type.TOPIC, Type.GROUP]),
    st.sampled_from(_NAMES),
    st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    st.sampled_from(["User:alice", "User:bob", "User:*", "Group:alice"]),
    st.sampled_from(["*", "10.0.0.1", "10.0.0.2"]),
    st.sampled_from([Op.ALL, Op.READ, Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)
_STEPS = st.lists(st.tuples(st.integers(0, 5), st.none() | _ENTRIES), max_size=20)


def naive_decision(
    entries: list[AccessControlEntry],
    allow_everyone: bool,
    principal: str,
    host: str,
    operation: Op,
    kind: Type,
    name: str,
) -> bool:
    """The rules of reference and documentation, read from top to bottom over every entry."""
    implied_by = {
        Op.DESCRIBE: {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER},
        Op.DESCRIBE_CONFIGS: {Op.ALTER_CONFIGS},
    }
    of_resource = [
        item
        for item in entries
        if item.resource_type == kind
        and (
            (item.pattern_type == Pattern.LITERAL and item.resource_name in (name, "*"))
            or (item.pattern_type == Pattern.PREFIXED and name.startswith(item.resource_name))
        )
    ]
    mine = [item for item in of_resource if item.principal in (principal, "User:*") and item.host in ("*", host)]
    if any(item.permission == Permission.DENY and item.operation in (operation, Op.ALL) for item in mine):
        return False
    allowing = {operation, Op.ALL} | implied_by.get(operation, set())
    if any(item.permission == Permission.ALLOW and item.operation in allowing for item in mine):
        return True
    return allow_everyone and not of_resource


@settings(max_examples=300, deadline=None)
@given(steps=_STEPS, allow_everyone=st.booleans())
def test_decisions_equal_those_of_a_scan_of_all_entries(
    steps: list[tuple[int, AccessControlEntry | None]], allow_everyone: bool
) -> None:
    authorizer = StandardAuthorizer(allow_everyone_if_no_acl_found=allow_everyone)
    entries: dict[int, AccessControlEntry] = {}
    for number, item in steps:
        authorizer.update({Uuid(number.to_bytes(16)): item})
        entries.pop(number, None)
        if item is not None:
            entries[number] = item
        for principal in (ALICE, BOB):
            for operation in (Op.READ, Op.DESCRIBE, Op.DESCRIBE_CONFIGS):
                for name in _NAMES:
                    verdict = authorizer.authorize(principal, HOST, operation, Type.TOPIC, name)
                    expected = naive_decision(
                        list(entries.values()), allow_everyone, str(principal), HOST, operation, Type.TOPIC, name
                    )
                    assert verdict.allowed is expected, (principal, operation, name, entries, verdict)
                anywhere = authorizer.authorize_any(principal, HOST, operation, Type.TOPIC)
                assert anywhere is naive_any(
                    list(entries.values()), allow_everyone, str(principal), HOST, operation, Type.TOPIC
                )
    assert set(authorizer.find(EntryFilter())) == set(entries.values())


def naive_any(
    entries: list[AccessControlEntry], allow_everyone: bool, principal: str, host: str, operation: Op, kind: Type
) -> bool:
    """Kafka's rules for "any resource", over every entry."""
    if naive_decision(entries, allow_everyone, principal, host, operation, kind, "hardcode"):
        return True
    mine = [
        item
        for item in entries
        if item.resource_type == kind
        and item.principal in (principal, "User:*")
        and item.host in ("*", host)
        and item.operation in (operation, Op.ALL)
    ]
    denies = [item for item in mine if item.permission == Permission.DENY]
    if any(item.resource_name == "*" and item.pattern_type == Pattern.LITERAL for item in denies):
        return False
    return any(not any(covers_all_of(deny, item) for deny in denies) for item in mine if item not in denies)


def covers_all_of(deny: AccessControlEntry, allowed: AccessControlEntry) -> bool:
    if allowed.pattern_type == Pattern.LITERAL and allowed.resource_name == "*":
        return False
    if deny.pattern_type == Pattern.PREFIXED:
        return allowed.resource_name.startswith(deny.resource_name)
    return allowed.pattern_type == Pattern.LITERAL and allowed.resource_name == deny.resource_name


def test_removing_every_entry_leaves_an_empty_index() -> None:
    authorizer = StandardAuthorizer()
    chance = random.Random(7)
    ids = [Uuid(index.to_bytes(16)) for index in range(200)]
    for index, entry_id in enumerate(ids):
        pattern = Pattern.PREFIXED if index % 2 else Pattern.LITERAL
        authorizer.update({entry_id: entry(f"topic-{chance.randrange(20)}", pattern=pattern)})
    chance.shuffle(ids)
    for entry_id in ids:
        authorizer.update({entry_id: None})
    assert not authorizer._entries
    assert not authorizer._patterns
    assert not authorizer._of_principals
    assert not any(authorizer._prefix_lengths.values())
