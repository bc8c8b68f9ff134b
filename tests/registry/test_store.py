"""The store without a broker: events in, records and answers out."""

import hashlib
import json

import pytest

from klamm.registry.store import RegistryRefusal, RegistryState
from klamm.registry.store.compact_index import CompactIndex
from klamm.registry.store.content import SchemaContent, SchemaReference
from klamm.registry.store.log_records import LogKey, encode_key, parse_key
from klamm.registry.store.lookup import (
    find_by_guid,
    find_by_id,
    find_by_metadata,
    find_version,
    list_names,
    list_referrer_ids,
    locate_subject,
    schema_subjects,
)
from klamm.registry.store.requests import LATEST, parse_version
from klamm.registry.store.scopes import effective_config, effective_mode
from klamm.registry.store.settings import decide_delete_config, decide_delete_mode
from klamm.registry.store.subject_order import SubjectOrder
from klamm.registry.store.subjects import Subject, parse_subject

from .small_store import SmallStore, record

A, B, C = record("R", a=False), record("R", a=False, b=True), record("R", a=False, c=False)


@pytest.fixture
def store():
    return SmallStore()


def refused(code):
    return pytest.raises(RegistryRefusal, check=lambda refusal: refusal.error_code == code)


def names_of(state, prefix, **flags):
    return list_names(state, state.order.matching(prefix), **flags)


# Ids and versions


def test_ids_count_from_one_and_equal_content_shares_one(store):
    assert store.register("s", A).schema_id == 1
    assert store.register("s", B).schema_id == 2
    assert store.register("t", A).schema_id == 1
    assert store.versions("s") == [1, 2]
    assert [str(use.subject) for use in store.state.uses(".", 1)] == ["s", "t"]


def test_registering_again_writes_nothing_even_when_it_is_incompatible_by_now(store):
    store.config("s", compatibility="NONE")
    first = store.register("s", A)
    store.register("s", record("R", z=False))
    store.config("s", compatibility="FULL_TRANSITIVE")
    written = len(store.topic)
    assert store.register("s", A).version == first.version == 1
    assert len(store.topic) == written


def test_a_deleted_schema_comes_back_as_the_next_version_with_its_id(store):
    store.register("s", A)
    store.register("s", B)
    store.delete("s")
    again = store.register("s", A)
    assert (again.version, again.schema_id) == (3, 1)
    assert store.versions("s", deleted=True) == [2, 3]
    store.open()
    assert store.versions("s") == [3]


def test_a_referenced_deleted_version_stays_beside_its_successor(store):
    store.register("s", A)
    store.register("t", B, references=[{"name": "R", "subject": "s", "version": 1}])
    store.delete("t")
    store.delete("s")
    store.register("s", A)
    assert store.versions("s", deleted=True) == [1, 2]


def test_ids_are_not_given_again_after_a_hard_delete(store):
    store.register("s", A)
    store.delete("s")
    store.delete("s", permanent=True)
    assert store.register("s", B).schema_id == 2
    assert store.versions("s") == [1]
    with refused(40403):
        find_by_id(store.state, 1, None)


def test_versions_in_paths():
    assert parse_version("7") == 7
    assert parse_version("latest") == parse_version("-1") == LATEST
    for text in ("0", "-2", "2147483648", "x", "", "٣"):
        with refused(42202):
            parse_version(text)


def test_the_given_version_must_be_the_next(store):
    store.register("s", A)
    with refused(42201):
        store.register("s", B, version=5)
    chosen = store.register("s", B, version=2)
    assert chosen.content.metadata == {"properties": {"confluent:version": "2"}}
    assert store.find("s", B) == store.state.version(Subject(".", "s"), 2)


def test_the_guid_is_the_md5_of_the_content(store):
    version = store.register("s", '{"type":"string"}')
    assert version.content.guid == hashlib.md5(b'{"type":"string"}').digest()
    assert find_by_guid(store.state, version.content.guid_text) == [(".", 1)]
    with refused(40403):
        find_by_guid(store.state, "no guid")


def test_references_metadata_and_rules_enter_the_guid():
    rules = {"domainRules": [{"name": "n", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "disabled": True}]}
    metadata = {"properties": {"k": "v"}, "tags": {"path": ["b", "a"]}, "sensitive": ["k"]}
    content = SchemaContent("JSON", "x", [SchemaReference("R", "inner", 2)], metadata, rules)
    expected = b"x" + b"Rinner\0\0\0\x02" + b"\x01pathabkvk" + b"\x01nCONDITIONWRITECEL\x01"
    assert content.guid == hashlib.md5(expected).digest()


# Compatibility


def test_an_incompatible_schema_is_refused_with_the_reason(store):
    store.register("s", A)
    with refused(40901) as caught:
        store.register("s", C)
    assert "READER_FIELD_MISSING_DEFAULT_VALUE c" in caught.value.message
    assert "{oldSchemaVersion: 1}" in caught.value.message
    assert "compatibility: 'BACKWARD'" in caught.value.message
    assert store.register("s", C, force=True).version == 2


def test_only_transitive_levels_compare_older_versions(store):
    store.register("s", A)
    store.register("s", B, force=True)
    newer = record("R", b=False)
    store.config("s", compatibility="backward_transitive")
    with refused(40901):
        store.register("s", newer)
    store.config("s", compatibility="BACKWARD")
    assert store.register("s", newer).version == 3


def test_another_type_is_incompatible_unless_the_level_is_none(store):
    store.register("s", A)
    with refused(40901):
        store.register("s", A, schemaType="JSON")
    store.config(None, compatibility="NONE")
    second = store.register("s", A, schemaType="JSON")
    assert second.schema_id == 2
    assert find_version(store.state, Subject(".", "s"), 2).content.schema_type == "JSON"


def test_groups_are_compared_among_themselves(store):
    store.config("s", compatibilityGroup="major")
    store.register("s", A, metadata={"properties": {"major": "1"}})
    second = store.register("s", C, metadata={"properties": {"major": "2"}})
    assert second.version == 2
    with refused(40901):
        store.register("s", record("R", d=False), metadata={"properties": {"major": "1"}})


def test_reserved_fields(store):
    store.config("s", validateFields=True)
    with refused(42201):
        store.register("s", record("R", **{"$$x": False}))
    with refused(40901):
        store.register("s", record("R", ssn=False), metadata={"properties": {"confluent:reserved": "ssn, tax"}})


def test_an_invalid_schema_is_refused(store):
    for more in ({"schema": "{"}, {"schema": A, "schemaType": "XML"}, {"schema": ""}, {"schema": '{"bad":true}'}):
        with refused(42201):
            store.register("s", more.pop("schema"), **more)


# References


def test_references_resolve_in_the_context_of_the_referrer(store):
    store.register(":.c:inner", A)
    outer = store.register(":.c:outer", B, references=[{"name": "R", "subject": "inner", "version": 1}])
    assert list(store.parser.parse_version(outer).references) == ["R"]
    with refused(42201):
        store.register("outer", B, references=[{"name": "R", "subject": "inner", "version": 1}])


def test_a_referenced_schema_cannot_be_deleted(store):
    store.register("inner", A)
    store.register("outer", B, references=[{"name": "R", "subject": "inner", "version": 1}])
    assert list_referrer_ids(store.state, find_version(store.state, Subject(".", "inner"), 1), deleted=False) == [2]
    for version in (None, 1):
        with refused(42206):
            store.delete("inner", version)
    store.delete("outer")
    store.delete("inner")
    with refused(42206):
        store.delete("inner", permanent=True)
    store.delete("outer", permanent=True)
    assert store.delete("inner", permanent=True) == [1]


def test_references_may_be_replayed_after_their_referrer(store):
    store.register("inner", A)
    store.register("outer", B, references=[{"name": "R", "subject": "inner", "version": 1}])
    store.topic.reverse()
    store.open()
    assert list(store.parser.parse_version(find_version(store.state, Subject(".", "outer"), 1)).references) == ["R"]


def test_cycles_end(store):
    entry = {
        "subject": "a",
        "version": 1,
        "id": 1,
        "schema": A,
        "references": [{"name": "x", "subject": "a", "version": 1}],
    }
    store.state.replay(encode_key(LogKey("SCHEMA", "a", 1)), json.dumps(entry).encode())
    with refused(42201):
        store.parser.parse_version(find_version(store.state, Subject(".", "a"), 1))


def test_a_look_up_matches_inlined_references(store):
    store.register("inner", A)
    outer = store.register("outer", B, references=[{"name": "R", "subject": "inner", "version": 1}])
    inlined = store.parser.parse_version(outer).format("resolved")
    assert store.find("outer", inlined).version == 1


# Metadata and rules


def test_metadata_is_inherited_and_surrounded_by_the_config(store):
    store.config("s", defaultMetadata={"properties": {"owner": "x", "tier": "1"}})
    store.config("s", overrideMetadata={"properties": {"tier": "2"}})
    first = store.register("s", A, metadata={"properties": {"owner": "me"}})
    assert first.content.metadata == {"properties": {"owner": "me", "tier": "2"}}
    second = store.register("s", B)
    assert second.content.metadata == first.content.metadata
    assert find_by_metadata(store.state, Subject(".", "s"), {"owner": "me"}, deleted=False) == store.state.version(
        Subject(".", "s"), 2
    )


def test_an_empty_schema_repeats_the_last_with_new_rules(store):
    rule = {"name": "r", "kind": "CONDITION", "mode": "WRITE", "type": "CEL", "expr": "true", "other": 1}
    store.register("s", A)
    second = store.register("s", "", ruleSet={"domainRules": [rule]})
    assert (second.version, second.schema_id, second.content.text) == (2, 2, A)
    assert "other" not in second.content.rule_set["domainRules"][0]
    assert store.register("s", "", ruleSet={"domainRules": [rule]}).version == 2


@pytest.mark.parametrize(
    "rule",
    [
        {"name": "1", "type": "CEL"},
        {"name": "r"},
        {"name": "r", "type": "CEL", "kind": "OTHER"},
        {"name": "r", "type": "CEL", "mode": "UPGRADE"},
        {"name": "r", "type": "CEL", "mode": "WRITE", "onSuccess": "NONE,ERROR"},
    ],
)
def test_bad_rules_are_refused(store, rule):
    with refused(42210):
        store.register("s", A, ruleSet={"domainRules": [rule]})


# Deletes


def test_deletes_are_soft_first(store):
    store.register("s", A)
    store.register("s", B)
    with refused(40405):
        store.delete("s", permanent=True)
    with refused(40407):
        store.delete("s", 1, permanent=True)
    assert store.delete("s", 1) == 1
    with refused(40406):
        store.delete("s", 1)
    assert store.versions("s") == [2]
    assert store.delete("s") == [2]
    with refused(40404):
        store.delete("s")
    assert find_by_id(store.state, 1, None)[1].text == A
    assert names_of(store.state, ":*:", deleted=False, deleted_only=False) == []
    assert names_of(store.state, ":*:", deleted=False, deleted_only=True) == ["s"]
    assert store.delete("s", 1, permanent=True) == 1
    assert store.delete("s", permanent=True) == [2]
    for version in (None, 1):
        with refused(40401):
            store.delete("s", version)


def test_the_last_hard_delete_takes_config_and_mode_along(store):
    store.register("s", A)
    store.config("s", compatibility="NONE")
    store.mode("s", "READWRITE")
    store.delete("s")
    store.delete("s", permanent=True)
    assert not store.state.configs
    assert not store.state.modes


# Configs and modes


def test_each_field_of_a_config_comes_from_the_nearest_scope(store):
    store.config(None, compatibility="FULL", normalize=True)
    store.config(":.c:", compatibility="NONE")
    store.config(":.c:s", compatibilityPolicy="lenient", alias="t")
    config = effective_config(store.state, parse_subject(":.c:s"))
    assert config == {
        "compatibilityLevel": "NONE",
        "normalize": True,
        "compatibilityPolicy": "LENIENT",
        "alias": "t",
    }
    assert effective_config(store.state, parse_subject(":.c:x"))["compatibilityLevel"] == "NONE"
    assert effective_config(store.state, parse_subject("x"))["compatibilityLevel"] == "FULL"
    store.config(None, normalize=None)
    assert "normalize" not in effective_config(store.state, None)
    with refused(42203):
        store.config("s", compatibility="SOME")


def test_deleting_a_config_answers_the_old_one(store):
    store.config("s", compatibility="FULL")
    assert store.write(decide_delete_config(store.state, parse_subject("s"), "BACKWARD")) == {
        "compatibilityLevel": "FULL"
    }
    with refused(40401):
        decide_delete_config(store.state, parse_subject("s"), "BACKWARD")


def test_an_alias_leads_to_another_subject(store):
    store.register("real", A)
    store.config("old", alias="real")
    assert locate_subject(store.state, Subject(".", "old")) == Subject(".", "real")
    assert [str(subject) for subject in schema_subjects(store.state, "old", aliases=True)] == ["real"]


def test_a_read_only_subject_takes_no_change(store):
    store.register("s", A)
    store.mode(None, "READONLY")
    assert store.register("s", A).version == 1
    for attempt in (
        lambda: store.register("s", B),
        lambda: store.delete("s"),
        lambda: store.config("s", compatibility="NONE"),
    ):
        with refused(42205):
            attempt()
    store.mode("s", "READWRITE")
    assert store.register("s", B).version == 2
    store.mode(None, "READONLY_OVERRIDE")
    with refused(42205):
        store.register("s", record("R", a=False, x=True))


def test_import_takes_ids_and_versions_from_the_caller(store):
    with refused(42205):
        store.register("s", A, id=7)
    store.register("other", B)
    with refused(42205):
        store.mode(None, "IMPORT")
    store.mode("s", "import")
    with refused(42205):
        store.register("s", A)
    assert (version := store.register("s", A, id=7, version=3)).schema_id == 7
    assert version.version == 3
    assert store.register("s", C, id=8, version=2).version == 2
    assert store.versions("s") == [2, 3]
    with refused(42207):
        store.register("s", B, id=7)
    with refused(42207):
        store.register("s", B, id=9, version=3)
    store.write(decide_delete_mode(store.state, parse_subject("s"), recursive=False))
    assert effective_mode(store.state, parse_subject("s")) == "READWRITE"
    assert store.register("s", record("R", a=False, x=True)).schema_id == 9


def test_import_forgets_deleted_schemas(store):
    store.register("s", A)
    store.delete("s")
    store.mode("s", "IMPORT")
    assert store.versions("s", deleted=True) == []
    assert store.register("s", B, id=1, version=1).schema_id == 1


# Contexts


def test_contexts_count_their_own_ids(store):
    assert store.register("s", A).schema_id == 1
    assert store.register(":.c:s", B).schema_id == 1
    assert store.state.context_names() == [".", ".c"]
    assert find_by_id(store.state, 1, parse_subject(":.c:"))[1].text == B
    assert find_by_id(store.state, 1, None)[1].text == A
    assert names_of(store.state, ":.c:", deleted=False, deleted_only=False) == [":.c:s"]
    assert names_of(store.state, "", deleted=False, deleted_only=False) == ["s"]


def test_an_unqualified_name_is_looked_for_in_all_contexts(store):
    store.register("z", A)
    store.register(":.c:only", B)
    assert locate_subject(store.state, Subject(".", "only")) == Subject(".c", "only")
    assert find_by_id(store.state, 1, Subject(".", "only"))[1].text == B
    assert find_by_id(store.state, 1, Subject(".", "z"))[1].text == A


@pytest.mark.parametrize("name", ["__GLOBAL", "__EMPTY", "a\nb", ":.__GLOBAL:x", ":.c:"])
def test_names_that_no_subject_has(store, name):
    with refused(42208):
        store.register(name, A)


# Replay


def test_replay_of_the_topic_gives_the_same_state(store):
    store.register("s", A)
    store.register("s", B)
    store.register(":.c:t", A, references=[])
    store.config("s", compatibility="FULL")
    store.mode(":.c:", "READONLY")
    store.delete("s", 1)
    before = vars(store.state).copy()
    store.open()
    assert {name: _plain(value) for name, value in vars(store.state).items()} == {
        name: _plain(value) for name, value in before.items()
    }
    store.compact()
    store.open()
    assert store.versions("s", deleted=True) == [1, 2]
    assert store.versions("s") == [2]


def _plain(value):
    if isinstance(value, SubjectOrder):
        return repr(value.subjects())
    return sorted(map(repr, value)) if isinstance(value, dict | CompactIndex) else repr(value)


def test_a_foreign_topic_is_read():
    state = RegistryState()
    records = [
        # Karapace's order of properties, its null for the global subject, and its empty value as a tombstone.
        (
            b'{"subject":"s","version":1,"magic":1,"keytype":"SCHEMA"}',
            b'{"subject":"s","version":1,"id":4,"schema":"\\"int\\"","deleted":false}',
        ),
        (
            b'{"keytype":"SCHEMA","subject":"s","version":2,"magic":1}',
            b'{"subject":"s","version":2,"id":5,"schema":"\\"long\\"","more":{}}',
        ),
        (b'{"keytype":"CONFIG","subject":null,"magic":0}', b'{"compatibilityLevel":"NONE"}'),
        (
            b'{"keytype":"SCHEMA","subject":"gone","version":1,"magic":1}',
            b'{"subject":"gone","version":1,"id":6,"schema":"\\"string\\""}',
        ),
        (b'{"keytype":"SCHEMA","subject":"gone","version":1,"magic":1}', b""),
        (b'{"keytype":"NOOP","magic":0}', None),
    ]
    for key, value in records:
        assert state.replay(key, value) is None
    assert [version.schema_id for version in state.versions(Subject(".", "s"))] == [4, 5]
    assert state.configs == {None: {"compatibilityLevel": "NONE"}}
    assert state.context(".").id_max == 6
    assert state.key_bytes[LogKey("SCHEMA", "s", 1)] == records[0][0]
    for key, value in (
        (None, None),
        (b"", b"x"),
        (b"[]", b"{}"),
        (b'{"keytype":"ASSOC"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"s","version":"x"}', b"{}"),
        (b'{"keytype":"SCHEMA","subject":"d","version":1,"magic":1}', b"not json"),
        (b'{"keytype":"SCHEMA","subject":"d","version":1,"magic":1}', b'{"id":"x","schema":1}'),
        (b'{"keytype":"SCHEMA","subject":"d","version":1,"magic":1}', b'{"id":4,"schema":"\\"bytes\\""}'),
        (b'{"keytype":"MODE","subject":"d","magic":0}', b"{}"),
    ):
        assert state.replay(key, value) is not None
    assert state.skipped == 9
    assert not state.versions(Subject(".", "d"))


def test_keys_have_confluents_bytes():
    assert encode_key(LogKey("SCHEMA", "s", 1)) == b'{"keytype":"SCHEMA","subject":"s","version":1,"magic":1}'
    assert encode_key(LogKey("CONFIG")) == b'{"keytype":"CONFIG","magic":0}'
    assert encode_key(LogKey("NOOP")) == b'{"keytype":"NOOP","magic":0}'
    assert (
        encode_key(LogKey("CONTEXT", context=".c"))
        == b'{"keytype":"CONTEXT","tenant":"default","context":".c","magic":0}'
    )
    for key in (LogKey("SCHEMA", "ü/ s", 3), LogKey("MODE", "x"), LogKey("CONFIG"), LogKey("CONTEXT", context=".c")):
        assert parse_key(encode_key(key)) == key


def test_a_subject_delete_spares_what_is_registered_after_it(store):
    store.register("s", A)
    store.delete("s")
    store.delete("s", permanent=True)
    store.register("s", B)
    store.compact()
    store.open()
    assert store.versions("s") == [1]
