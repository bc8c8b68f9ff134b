"""What the admin promises beyond topics and groups, told to Klamm; `make compat` tells it to Apache Kafka too."""

import inspect

import pytest

import klamm.testing
from harness import admin_stories, client_stories
from klamm.client import Admin
from klamm.client.admin.async_admin import AsyncAdmin

FACE = {"request", "start", "close", "cluster"}
"""What is no question of its own: life, and the way to ask anything at all."""


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker() as running:
        yield running


@pytest.mark.parametrize("story", admin_stories.ONE_BROKER.values(), ids=admin_stories.ONE_BROKER.keys())
def test_story(broker, story):
    story(broker.bootstrap)


def test_passwords(broker):
    admin_stories.passwords_are_set_and_taken_away(broker.bootstrap)


def test_quotas(broker):
    admin_stories.quotas_are_set_found_and_taken_away(broker.bootstrap)


@pytest.mark.parametrize("name", admin_stories.GUARDED)
def test_without_an_authorizer_there_are_no_access_rules(broker, name):
    admin_stories.needs_an_authorizer(broker.bootstrap, admin_stories.GUARDED[name])


def test_every_question_is_in_a_story():
    stories = inspect.getsource(client_stories) + inspect.getsource(admin_stories)
    questions = {name for name in vars_of(AsyncAdmin) if not name.startswith("_")} - FACE
    assert len(questions) > 35
    assert [name for name in sorted(questions) if f"admin.{name}(" not in stories] == []


def test_both_faces_ask_the_same():
    assert {name for name in vars_of(Admin) if not name.startswith("_")} | {"start", "cluster"} == {
        name for name in vars_of(AsyncAdmin) if not name.startswith("_")
    }


def vars_of(kind: type) -> set[str]:
    return {name for parent in kind.__mro__[:-1] for name in vars(parent)}
