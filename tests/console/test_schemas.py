"""Schemas of a real registry, and their texts."""

import json
import re

import pytest

from klamm.console.clusters import ConsoleCluster
from klamm.console.core.schema_texts import compare_schemas, format_schema
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


def test_texts_are_indented_and_compared():
    assert format_schema("AVRO", '{"type":"string"}') == '{\n  "type": "string"\n}'
    assert format_schema("PROTOBUF", 'syntax = "proto3";') == 'syntax = "proto3";'
    assert compare_schemas("a\nb", "a\nb") == []
    assert [(line.kind, line.text) for line in compare_schemas("a\nb", "a\nc")][1:] == [
        ("same", "a"),
        ("removed", "b"),
        ("added", "c"),
    ]
