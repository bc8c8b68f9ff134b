"""Which subjects the keys and values of topics have: the rules, the records, the routes."""

import json

import pytest

from klamm.registry.store.association_requests import parse_resource
from klamm.registry.store.association_table import AssociationFilter
from klamm.registry.store.associations import Associating
from klamm.registry.store.refusals import RegistryRefusal
from klamm.registry.store.subjects import Subject

from .small_service import AsgiClient, SmallService
from .small_store import SmallStore, record

A, B = record("R", a=False), record("R", a=False, b=True)
OWN = ":.lkc1:orders-value"
"""The subject that the values of the topic may own."""


def resource(*associations, name="orders", resource_id="t1"):
    return {
        "resourceName": name,
        "resourceNamespace": "lkc1",
        "resourceId": resource_id,
        "associations": [*associations],
    }


def strong(kind="value", schema=A, **more):
    return {"associationType": kind, "schema": {"schema": schema}, **more}


def weak(subject="shared", kind="value", **more):
    return {"associationType": kind, "subject": subject, **more}


@pytest.fixture
def http():
    client = AsgiClient(SmallService())
    client.register("shared", A)
    yield client
    client.close()


def create(http, *associations, status=200, **more):
    answer = http.post("/associations", resource(*associations, **more))
    assert answer.status == status, answer.body
    return answer.json()


def refused(http, body, method="POST", target="/associations"):
    return http(method, target, body).error_code


def listed(http, target="/associations/resources/t1"):
    return [(item["associationType"], item["subject"], item["lifecycle"]) for item in http.get(target).json()]


def test_a_topic_owns_the_subject_that_is_created_with_it(http):
    answer = create(http, strong())
    assert answer["associations"][0]["schema"]["version"] == 1
    assert (answer["resourceType"], answer["associations"][0]["frozen"]) == ("topic", True)
    assert listed(http) == [("value", OWN, "STRONG")]
    assert http.get("/contexts/.lkc1/subjects").json() == [OWN]
    for target in ("resources/lkc1/orders", "resources/-/orders", f"subjects/{OWN}"):
        assert listed(http, f"/associations/{target}") == [("value", OWN, "STRONG")]
    assert listed(http, "/associations/resources/other/orders") == []
    full = http.get("/associations/resources/t1").json()[0]
    assert full["resourceName"] == "orders"
    assert full["guid"]
    assert full["createTs"] > 0
    assert full["updateTs"] == 1700000000000


def test_key_and_value_are_created_together(http):
    assert refused(http, resource(strong("key", A), strong("key", B))) == 42212
    answer = create(http, strong("key", A), strong("value", B))
    assert [item["schema"]["id"] for item in answer["associations"]] == [1, 2]
    # One content has one id, and the next schema of the context gets the next.
    other = create(http, strong("key", B), strong("value", B), name="bills", resource_id="t2")
    assert [item["schema"]["id"] for item in other["associations"]] == [2, 2]
    assert http.register(":.lkc1:more", record("Q", z=False)).json()["id"] == 3


def test_a_weak_association_uses_a_subject_that_others_use(http):
    create(http, weak())
    create(http, weak(), name="bills", resource_id="t2")
    assert listed(http, "/associations/subjects/shared") == [("value", "shared", "WEAK"), ("value", "shared", "WEAK")]
    assert listed(http, "/associations/subjects/shared?limit=1&offset=1") == [("value", "shared", "WEAK")]
    assert listed(http, "/associations/subjects/shared?lifecycle=STRONG") == []
    assert listed(http, "/associations/resources/t1?associationType=key") == []
    assert listed(http, "/associations/resources/t1?associationType=key&associationType=value") != []
    assert http.get("/associations/subjects/shared?lifecycle=odd").error_code == 42212


@pytest.mark.parametrize(
    ("association", "code"),
    [
        (weak("none"), 40907),
        (strong(lifecycle="WEAK", subject="shared"), 42212),
        (strong(frozen=False), 42212),
        (strong(subject="shared"), 42212),
        (weak(frozen=True), 42212),
        (weak(lifecycle="STRONG"), 42212),
        (weak(OWN), 42212),
        ({"associationType": "value"}, 42212),
        ({"associationType": "value", "lifecycle": "STRONG"}, 42212),
        (weak(kind="header"), 42212),
        (weak(lifecycle="odd"), 42212),
        (weak(""), 42212),
        (strong(schema="{"), 42201),
    ],
)
def test_invalid_associations(http, association, code):
    assert refused(http, resource(association)) == code
    assert listed(http) == []
    assert http.get("/subjects").json() == ["shared"]


@pytest.mark.parametrize(
    "change",
    [
        {"resourceName": ""},
        {"resourceName": "a/b"},
        {"resourceName": "a" * 257},
        {"resourceNamespace": None},
        {"resourceId": ""},
        {"resourceType": "table"},
        {"associations": []},
        {"associations": [1]},
    ],
)
def test_invalid_resources(http, change):
    assert refused(http, resource(weak()) | change) == 42212


def test_a_repeated_request_is_answered_and_another_one_is_refused(http):
    create(http, strong())
    assert create(http, strong())["associations"][0]["lifecycle"] == "STRONG"
    assert refused(http, resource(strong(schema=B))) == 40903
    assert refused(http, resource(weak())) == 40903
    create(http, weak(), name="bills", resource_id="t2")
    assert refused(http, resource(weak("other"), name="bills", resource_id="t2")) == 40903


def test_an_owned_subject_has_one_topic(http):
    create(http, strong())
    assert refused(http, resource(weak(OWN), name="bills", resource_id="t2")) == 40905
    # A topic of the same name, created anew while the old one's association is still there.
    assert refused(http, resource(strong(), resource_id="t9")) == 42212
    http.register(":.lkc1:bills-value", A)
    create(http, weak(":.lkc1:bills-value"), name="users", resource_id="t3")
    assert refused(http, resource(strong(), name="bills", resource_id="t4")) == 42212


def test_one_lifecycle_per_topic(http):
    assert refused(http, resource(strong("key"), weak())) == 42212
    assert listed(http) == []
    assert OWN.replace("value", "key") not in http.get("/subjects").json()
    create(http, weak())
    assert refused(http, resource(strong("key"))) == 42212
    create(http, weak(kind="key"))
    assert len(listed(http)) == 2


def put(http, *associations, **more):
    return http.put("/associations/resources/t1", resource(*associations, **more))


def test_updates(http):
    assert put(http, strong()).error_code == 42212
    assert put(http, weak(lifecycle="STRONG")).error_code == 42212
    assert put(http, {"associationType": "value"}).error_code == 42212
    assert put(http, weak(), resource_id="t2").error_code == 42212
    assert put(http, weak()).status == 200
    assert put(http, {"associationType": "value"}).json()["associations"][0]["subject"] == "shared"
    for change in (weak("other"), weak(frozen=True), weak(lifecycle="STRONG"), strong()):
        assert put(http, change).error_code == 42212
    http.delete("/associations/resources/t1")
    create(http, strong())
    assert put(http, strong(schema=B)).json()["associations"][0]["schema"]["version"] == 2
    assert put(http, {"lifecycle": "WEAK"}).error_code == 40908
    assert put(http, strong(schema=record("Other", x=False))).error_code == 40901


def test_deletes(http):
    assert http.delete("/associations/resources/t1").error_code == 40410
    create(http, weak(), weak(kind="key"))
    assert http.delete("/associations/resources/t1?associationType=key").status == 204
    assert listed(http) == [("value", "shared", "WEAK")]
    assert http.delete("/associations/resources/t1?dryRun=true").status == 204
    assert listed(http) != []
    assert http.delete("/associations/resources/t1?cascadeLifecycle=true").status == 204
    assert (listed(http), http.get("/subjects/shared/versions").json()) == ([], [1])
    create(http, strong("key"), strong("value", B))
    assert http.delete("/associations/resources/t1").error_code == 40908
    assert http.delete("/associations/resources/t1?cascadeLifecycle=true").status == 204
    assert listed(http) == []
    assert http.get("/subjects?deleted=true").json() == ["shared"]
    # The ids of the subjects that went are not given again.
    assert http.register(":.lkc1:new", record("New", n=False)).json()["id"] == 3


def test_an_associated_subject_keeps_a_version(http):
    http.register("shared", B)
    create(http, weak())
    assert http.delete("/subjects/shared").error_code == 40904
    assert http.delete("/subjects/shared/versions/1").json() == 1
    assert http.delete("/subjects/shared/versions/1?permanent=true").json() == 1
    assert http.delete("/subjects/shared/versions/2").error_code == 40904
    http.delete("/associations/resources/t1")
    assert http.delete("/subjects/shared").json() == [2]


def test_a_dry_run_writes_nothing(http):
    before = len(http.service.log.topic)
    body = resource(strong()) | {"resourceId": None}
    answer = http.post("/associations?dryRun=true", body)
    assert (answer.status, answer.json()["associations"][0]["subject"]) == (200, OWN)
    assert http.post("/associations?dryRun=true", resource(weak("none"))).error_code == 40907
    assert len(http.service.log.topic) == before
    create(http, strong("key"))
    assert http.post("/associations?dryRun=true", resource(weak()) | {"resourceId": ""}).error_code == 42212


def test_batches(http):
    def operations(name, *items):
        return {"resourceName": name, "resourceNamespace": "lkc1", "resourceId": name, "associations": items}

    requests = [
        operations("a", strong(opType="CREATE"), strong("key", B, opType="CREATE")),
        operations("b", weak(opType="UPSERT")),
        operations("c", weak("none", opType="CREATE")),
        operations("d", weak(opType="CREATE"), strong("key", opType="CREATE")),
        operations("e", {"opType": "DELETE"}),
        operations("f", {"opType": "odd"}),
        operations("g", weak(opType="UPSERT"), {"opType": "DELETE"}),
    ]
    answer = http.post("/associations:batchMutate", {"requests": requests})
    assert answer.status == 207
    results = answer.json()["results"]
    codes = [result.get("error", {}).get("error_code") for result in results]
    assert codes == [None, None, 40907, 42212, 40410, 42212, 42212]
    assert len(results[0]["result"]["associations"]) == 2
    assert listed(http, "/associations/resources/d") == []
    change = operations("b", {"opType": "DELETE"}, weak(kind="key", opType="CREATE"))
    assert http.post("/associations:batch", {"requests": [change]}).json()["results"][0]["result"]
    assert listed(http, "/associations/resources/b") == [("key", "shared", "WEAK")]
    assert http.post("/associations:batchMutate", {"requests": []}).error_code == 42212
    wanted = [{"resourceId": "a", "associationTypes": ["key"]}, {"resourceName": "b"}, {}]
    got = http.post("/associations:batchGet?includeSchemas=true", {"requests": wanted}).json()["results"]
    assert got[0]["result"]["associations"][0]["schema"]["schema"] == B
    assert got[1]["result"]["resourceId"] == "b"
    assert got[2]["error"]["error_code"] == 42212


def test_imported_subjects_are_associated_without_a_schema(http):
    http.put("/mode/:.lkc1:", {"mode": "IMPORT"})
    assert refused(http, resource(weak(lifecycle="STRONG", subject=OWN))) == 40907
    http.register(OWN, A, id=7, version=3)
    create(http, weak(lifecycle="STRONG", subject=OWN))
    assert listed(http) == [("value", OWN, "STRONG")]
    assert refused(http, resource(strong("key"))) == 42205


def test_read_only_subjects_are_not_associated(http):
    http.put("/mode/shared", {"mode": "READONLY"})
    assert refused(http, resource(weak())) == 42205


def test_contexts(http):
    http.register(":.team:s", A)
    create(http, weak(":.team:s"))
    answer = http.post("/associations?context=.team", resource(weak("s", kind="key")))
    assert answer.json()["associations"][0]["subject"] == ":.team:s"
    assert listed(http, "/contexts/.team/associations/subjects/s") == [
        ("key", ":.team:s", "WEAK"),
        ("value", ":.team:s", "WEAK"),
    ]


def test_records_and_replay():
    store = SmallStore()
    store.register("shared", A)
    associating = Associating(store.state, store.registration)

    def decide(body, **options):
        request = parse_resource(body, ".", dry_run=False)
        return associating.decide(request, create=True, now_ms=5, make_guid=lambda: "g", **options)

    store.write(decide(resource(weak())))
    key, value = store.topic[-1]
    # The order that Confluent's registry writes: compaction compares bytes.
    assert key.decode() == (
        '{"keytype":"ASSOC","tenant":"default","resourceName":"orders","resourceNamespace":"lkc1",'
        '"resourceType":"topic","associationType":"value","subject":"shared","magic":0}'
    )
    fields = json.loads(value)
    assert (fields["resourceId"], fields["lifecycle"], fields["frozen"]) == ("t1", "WEAK", False)
    assert (fields["createTs"], fields["guid"]) == (5, "g")
    store.compact()
    store.open()
    assert len(store.state.associations.of_subject(Subject(".", "shared"))) == 1
    assert store.state.replay(key, b'{"no":"id"}') is not None
    assert len(store.state.associations.of_resource("t1")) == 1
    associating = Associating(store.state, store.registration)
    store.write(associating.decide_delete("t1", AssociationFilter(), cascade=False))
    assert len(store.state.associations) == 0
    store.compact()
    store.open()
    assert len(store.state.associations) == 0
    for damaged in ({"keytype": "ASSOC"}, {"keytype": "ASSOC", "subject": "s", "resourceName": 1}):
        assert store.state.replay(json.dumps(damaged).encode(), b"{}") is not None


def test_unknown_resources_of_a_delete():
    store = SmallStore()
    with pytest.raises(RegistryRefusal) as refusal:
        Associating(store.state, store.registration).decide_delete("none", AssociationFilter(), cascade=True)
    assert refusal.value.error_code == 40410
