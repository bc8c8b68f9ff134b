"""Schemas of a real registry, and their texts."""

import json
import re

import pytest

from klamm.console.clusters import ConsoleCluster
from klamm.console.core.schema_texts import (
    ReferenceRow,
    compare_schemas,
    format_references,
    format_schema,
    parse_references,
)
from klamm.console.service import ConsoleConfig
from klamm.testing import unique
from registry.conftest import running_registry

from .served import ServedConsole

FIELD = {"name": "id", "type": "long"}
ADDED = {"name": "note", "type": "string", "default": ""}


def record(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.fixture(scope="module")
def running(broker):
    with running_registry(broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running


@pytest.fixture(scope="module")
def registered(broker, running):
    """A console with a registry, in which orders-value has two versions."""
    running.register("orders-value", record(FIELD))
    running.register("orders-value", record(FIELD, ADDED))
    running.register("team%2Fa", '"string"')
    cluster = ConsoleCluster("test", broker.bootstrap, registry_url=running.url)
    with ServedConsole(ConsoleConfig((cluster,), interval_s=600)) as console:
        console.collect()
        yield console


@pytest.fixture
def schemas(registered):
    visit = registered.visitor()
    yield visit
    visit.client.close()


def test_subjects_are_found(schemas):
    assert "orders-value" in schemas.get("/c/test/schemas?q=order")
    assert "orders-value" not in schemas.get("/c/test/schemas?q=absent")


def test_a_version_is_compared_with_the_one_before(schemas):
    page = schemas.get("/c/test/schemas/orders-value")
    assert re.search(r'class="added">\+ +&#34;name&#34;: &#34;note&#34;', page)
    assert "Changes since version 1" in page
    assert "backward" in page
    assert "Changes since" not in schemas.get("/c/test/schemas/orders-value?version=1")
    schemas.get("/c/test/schemas/orders-value?version=9", 404)
    schemas.get("/c/test/schemas/absent", 404)


def test_a_subject_whose_name_has_a_slash_has_a_page(schemas):
    link = re.search(r'href="(/c/test/schemas/team[^"]+)"', schemas.get("/c/test/schemas"))[1]
    assert "&#34;string&#34;" in schemas.get(link)


def test_a_schema_that_is_not_compatible_is_not_registered(running, schemas):
    form = {"subject": "orders-value", "kind": "AVRO", "text": record({"name": "total", "type": "double"})}
    page = schemas.post("/c/test/new-schema?subject=orders-value", "/c/test/new-schema", 409, **form)
    assert "Not compatible with the newest version." in page
    assert "READER_FIELD_MISSING_DEFAULT_VALUE" in page
    assert running.get("/subjects/orders-value/versions") == [1, 2]


def test_a_check_registers_nothing_and_a_registration_does(running, schemas):
    subject = unique("new")
    form = {"subject": subject, "kind": "AVRO", "text": record(FIELD)}
    assert "Nothing is registered yet" in schemas.post("/c/test/new-schema", "/c/test/new-schema", check="1", **form)
    assert subject not in running.get("/subjects")
    assert f"Registered a version of {subject}." in schemas.post("/c/test/new-schema", "/c/test/new-schema", **form)
    assert running.get(f"/subjects/{subject}/versions") == [1]
    assert subject in schemas.get("/c/test/audit")


def test_a_text_that_is_no_schema_is_refused(schemas):
    form = {"subject": unique("bad"), "kind": "AVRO", "text": "{"}
    schemas.post("/c/test/new-schema", "/c/test/new-schema", 409, **form)


def test_a_cluster_without_a_registry_has_no_schemas(visit):
    assert "--registry URL" in visit.get("/c/test/schemas", 404)
    assert "/c/test/schemas" not in visit.get("/c/test")


MONEY = json.dumps({"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]})


def test_a_new_version_keeps_the_references_of_the_one_before(running, schemas):
    money, bill = unique("money"), unique("bill")
    running.register(money, MONEY)
    form = {"subject": bill, "kind": "AVRO", "references": f"Money {money} 1"}
    total = {"name": "total", "type": "Money"}
    schemas.post("/c/test/new-schema", "/c/test/new-schema", text=record(total), **form)
    assert running.get(f"/subjects/{bill}/versions/1")["references"] == [
        {"name": "Money", "subject": money, "version": 1}
    ]
    # The form of the next version has them, so that an edit of the text is enough.
    page = schemas.get(f"/c/test/new-schema?subject={bill}")
    lines = re.search(r'<textarea name="references"[^>]*>([^<]*)<', page)[1]
    assert lines == f"Money {money} 1"
    form |= {"references": lines, "text": record(total, ADDED)}
    path = "/c/test/new-schema"
    assert "Nothing is registered yet" in schemas.post(path, path, check="1", **form)
    assert f"Registered a version of {bill}." in schemas.post(path, path, **form)
    assert running.get(f"/subjects/{bill}/versions/2")["references"] == [
        {"name": "Money", "subject": money, "version": 1}
    ]
    # Without them the text is no schema: the name is not known.
    schemas.post(path, path, 409, **{**form, "references": ""})


def test_a_subject_shows_what_uses_it(running, schemas):
    money, bill = unique("money"), unique("bill")
    running.register(money, MONEY)
    assert "Used by" not in schemas.get(f"/c/test/schemas/{money}")
    form = {
        "subject": bill,
        "kind": "AVRO",
        "references": f"Money {money} 1",
        "text": record({"name": "m", "type": "Money"}),
    }
    page = schemas.post("/c/test/new-schema", "/c/test/new-schema", **form)
    assert re.search(rf'Uses</dt><dd><a href="/c/test/schemas/{money}\?version=1">Money</a>', page)
    assert re.search(
        rf'Used by</dt><dd><a href="/c/test/schemas/{bill}\?version=1">{bill} v1</a>',
        schemas.get(f"/c/test/schemas/{money}"),
    )


@pytest.mark.parametrize("line", ["Money", "Money money-value", "Money money-value latest", "Money 3"])
def test_a_line_that_is_no_reference_is_refused(schemas, line):
    form = {"subject": unique("bad"), "kind": "AVRO", "text": record(FIELD), "references": line}
    page = schemas.post("/c/test/new-schema", "/c/test/new-schema", 400, **form)
    assert "is no reference: write its name, the subject and the version" in page


def test_references_come_back_as_they_were_written():
    references = (ReferenceRow("a.proto", "files/a b", 2), ReferenceRow("B", ":.ctx:b", 10))
    assert parse_references(format_references(references) + "\n\n") == references


def test_each_cluster_has_its_own_registry(broker, running):
    with running_registry(broker.bootstrap, unique("_schemas"), unique("schema-registry")) as other:
        running.register("of-one-value", MONEY)
        other.register("of-two-value", MONEY)
        clusters = [
            ConsoleCluster("one", broker.bootstrap, registry_url=running.url),
            ConsoleCluster("two", broker.bootstrap, registry_url=other.url),
            ConsoleCluster("none", broker.bootstrap),
        ]
        with ServedConsole(ConsoleConfig(tuple(clusters), interval_s=600)) as console:
            for cluster in clusters:
                console.collect(cluster.name)
            visit = console.visitor()
            assert "of-one-value" in visit.get("/c/one/schemas")
            assert "of-two-value" not in visit.get("/c/one/schemas")
            assert "of-two-value" in visit.get("/c/two/schemas")
            visit.get("/c/none/schemas", 404)


def test_texts_are_indented_and_compared():
    assert format_schema("AVRO", '{"type":"string"}') == '{\n  "type": "string"\n}'
    assert format_schema("PROTOBUF", 'syntax = "proto3";') == 'syntax = "proto3";'
    assert compare_schemas("a\nb", "a\nb") == []
    assert [(line.kind, line.text) for line in compare_schemas("a\nb", "a\nc")][1:] == [
        ("same", "a"),
        ("removed", "b"),
        ("added", "c"),
    ]
