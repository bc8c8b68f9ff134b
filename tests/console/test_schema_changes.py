"""Compatibility levels and deletions of schemas, by the console's forms."""

import json

import httpx2
import pytest
from argon2 import PasswordHasher

from klamm.console.clusters import ConsoleCluster
from klamm.console.service import ConsoleConfig
from klamm.console.settings import parse_settings
from klamm.testing import unique
from registry.conftest import running_registry

from .served import ServedConsole

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
SETTINGS = f"""
[users.anna]
password = "{CHEAP.hash("correct horse")}"
roles = ["admin"]

[users.victor]
password = "{CHEAP.hash("battery staple")}"
roles = ["team", "viewer"]

[roles.team]
actions = ["view", "schemas"]
topics = ["team-*"]
"""
FIELD = {"name": "id", "type": "long"}
ADDED = {"name": "note", "type": "string", "default": ""}
RENAMED = {"name": "total", "type": "double"}


def record(*fields):
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


@pytest.fixture(scope="module")
def running(broker):
    with running_registry(broker.bootstrap, unique("_schemas"), unique("schema-registry")) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(broker, running):
    clusters = (
        ConsoleCluster("test", broker.bootstrap, registry_url=running.url),
        ConsoleCluster("prod", broker.bootstrap, protected=True, registry_url=running.url),
    )
    with ServedConsole(ConsoleConfig(clusters, parse_settings(SETTINGS), interval_s=600)) as console:
        console.collect("test")
        console.collect("prod")
        yield console


def log_in(console, name, password):
    visit = console.visitor()
    visit.post("/login", "/login", name=name, password=password)
    return visit


@pytest.fixture
def anna(guarded):
    visit = log_in(guarded, "anna", "correct horse")
    yield visit
    visit.client.close()


@pytest.fixture
def victor(guarded):
    visit = log_in(guarded, "victor", "battery staple")
    yield visit
    visit.client.close()


@pytest.fixture
def subject(running):
    """A subject with two versions."""
    subject = unique("orders-value")
    running.register(subject, record(FIELD))
    running.register(subject, record(FIELD, ADDED))
    return subject


def change(visit, subject, form, status=200, **fields):
    page = f"/c/test/schemas/{subject}"
    return visit.post("/c/test/schemas", f"{page}/{form}", status, **fields)


def test_the_level_of_a_subject_is_set_and_taken_back(running, anna, subject):
    page = change(anna, subject, "level", level="FORWARD_TRANSITIVE")
    assert f"{subject} is FORWARD_TRANSITIVE now." in page
    assert running.get(f"/config/{subject}")["compatibilityLevel"] == "FORWARD_TRANSITIVE"
    assert "<option selected>FORWARD_TRANSITIVE</option>" in page
    page = change(anna, subject, "level", level="")
    assert f"{subject} has the level of the registry now." in page
    assert running.request("GET", f"/config/{subject}")[0] == 404
    audit = anna.get("/c/test/audit")
    assert "change compatibility" in audit
    assert "FORWARD_TRANSITIVE" in audit


def test_a_level_decides_on_the_next_version(anna, subject):
    form = {"subject": subject, "kind": "AVRO", "text": record(RENAMED)}
    anna.post("/c/test/new-schema", "/c/test/new-schema", 409, **form)
    change(anna, subject, "level", level="NONE")
    assert "Registered a version" in anna.post("/c/test/new-schema", "/c/test/new-schema", **form)


def test_the_level_of_all_subjects_is_set(running, anna):
    page = anna.post("/c/test/schemas", "/c/test/schema-level", level="FULL")
    assert running.get("/config")["compatibilityLevel"] == "FULL"
    assert "<option selected>FULL</option>" in page
    anna.post("/c/test/schemas", "/c/test/schema-level", 400, level="SOME")
    anna.post("/c/test/schemas", "/c/test/schema-level", level="BACKWARD")
    assert running.get("/config")["compatibilityLevel"] == "BACKWARD"


def test_a_version_is_deleted_and_then_for_good(running, anna, subject):
    page = change(anna, subject, "delete", version="1", name=subject)
    assert f"Deleted version 1 of {subject}." in page
    assert running.get(f"/subjects/{subject}/versions") == [2]
    page = anna.get(f"/c/test/schemas/{subject}?version=1")
    assert "This version is deleted." in page
    assert "Delete version 1 for good" in page
    page = change(anna, subject, "delete", version="1", permanent="1", name=subject)
    assert f"Deleted version 1 of {subject} for good." in page
    assert running.get(f"/subjects/{subject}/versions?deleted=true") == [2]
    assert "delete schema for good" in anna.get("/c/test/audit")


def test_a_subject_is_deleted_and_then_for_good(running, anna, subject):
    page = change(anna, subject, "delete", name=subject)
    assert "This version is deleted." in page
    assert subject not in running.get("/subjects")
    assert f">{subject}</a>" not in anna.get("/c/test/schemas")
    assert f">{subject}</a>" in anna.get("/c/test/schemas?deleted=1")
    page = change(anna, subject, "delete", permanent="1", name=subject)
    assert f"Deleted {subject} for good." in page
    assert subject not in running.get("/subjects?deleted=true")
    anna.get(f"/c/test/schemas/{subject}", 404)


def test_nothing_is_deleted_without_the_name(running, anna, subject):
    assert "nothing was changed" in change(anna, subject, "delete", 400, version="1", name="another")
    assert "is no version" in change(anna, subject, "delete", 400, version="latest", name=subject)
    assert running.get(f"/subjects/{subject}/versions") == [1, 2]


def test_a_refusal_of_the_registry_is_shown(running, anna, subject):
    """Only what is deleted may be deleted for good."""
    page = change(anna, subject, "delete", version="1", permanent="1", name=subject)
    assert f"Deleted version 1 of {subject}" not in page
    assert "notice bad" in page
    assert running.get(f"/subjects/{subject}/versions") == [1, 2]


def test_a_role_changes_its_subjects_only(running, victor, subject):
    own = unique("team-value")
    running.register(own, record(FIELD))
    assert f"{own} is FULL now." in change(victor, own, "level", level="FULL")
    assert "Compatibility of all subjects" not in victor.get("/c/test/schemas")
    token = victor.token(f"/c/test/schemas/{own}")
    for path in ("schema-level", f"schemas/{subject}/level", f"schemas/{subject}/delete"):
        fields = {"_token": token, "level": "NONE", "name": subject}
        assert victor.client.post(f"/c/test/{path}", data=fields).status_code == 403, path
    assert ">Change<" not in victor.get(f"/c/test/schemas/{subject}")
    assert running.get(f"/subjects/{subject}/versions") == [1, 2]


def test_a_protected_cluster_wants_its_name(running, anna, subject):
    page = anna.post("/c/test/schemas", f"/c/prod/schemas/{subject}/delete", name=subject)
    assert "prod is protected" in page
    assert running.get(f"/subjects/{subject}/versions") == [1, 2]


def test_a_form_of_another_session_changes_nothing(guarded, anna, running, subject):
    with httpx2.Client(base_url=guarded.url, cookies=dict(anna.client.cookies)) as client:
        answer = client.post(f"/c/test/schemas/{subject}/delete", data={"_token": "x", "name": subject})
    assert answer.status_code == 403
    assert running.get(f"/subjects/{subject}/versions") == [1, 2]
