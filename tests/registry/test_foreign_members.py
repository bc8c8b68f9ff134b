"""Klamm in one group with registries of other products: it follows, forwards, leads and takes over."""

import contextlib
import urllib.request

import pytest

from klamm.testing import unique

from .conftest import running_registry
from .foreign_registry import CONFLUENT, KARAPACE, ForeignRegistry
from .processes import wait_until
from .small_store import record

A, B = record("R", a=False), record("R", a=False, b=True)
DIALECTS = pytest.mark.parametrize("dialect", [KARAPACE, CONFLUENT])


@pytest.fixture
def names():
    return unique("_schemas"), unique("schema-registry")


def is_led_by(registry, leader):
    return registry.request("GET", "/health/ready")[1].get("leader") == leader.url


def has_joined(registry):
    with urllib.request.urlopen(f"{registry.url}/metrics", timeout=60) as response:
        return b"\nklamm_registry_elections_total 0" not in response.read()


def check_forwarded(registry, foreign):
    """A change goes to the other registry once, marked as forwarded, and its answer comes back."""
    status, answer = registry.request("POST", "/subjects/s/versions", {"schema": A}, Authorization="Basic YTpi")
    assert (status, answer) == (200, {"id": 4711})
    [(path, headers, body)] = foreign.requests
    assert (path, body) == ("/subjects/s/versions", {"schema": A})
    assert (headers["x-forward"], headers["authorization"]) == ("true", "Basic YTpi")


def check_leads(registry):
    wait_until(lambda: registry.request("GET", "/health/ready")[1].get("leading"))
    assert registry.register("t", B)["id"] == 1


@DIALECTS
def test_a_foreign_leader_of_the_group_elects_itself(klamm_broker, names, dialect):
    _, group = names
    with ForeignRegistry(dialect, klamm_broker.bootstrap, group) as foreign:
        assert foreign.leads_group
        with running_registry(klamm_broker.bootstrap, *names) as registry:
            wait_until(lambda: is_led_by(registry, foreign))
            assert registry.request("GET", "/health/ready")[1]["leading"] is False
            check_forwarded(registry, foreign)
            foreign.leave()
            check_leads(registry)


@DIALECTS
def test_a_foreign_leader_of_the_group_elects_klamm(klamm_broker, names, dialect):
    _, group = names
    with (
        ForeignRegistry(dialect, klamm_broker.bootstrap, group, is_small=False, eligible=False) as foreign,
        running_registry(klamm_broker.bootstrap, *names) as registry,
    ):
        check_leads(registry)
        assert foreign.leads_group
        assert foreign.master_url == registry.url
        assert foreign.requests == []


@DIALECTS
def test_klamm_leads_the_group_and_stays_the_leader(klamm_broker, names, dialect):
    _, group = names
    with running_registry(klamm_broker.bootstrap, *names) as registry:
        check_leads(registry)
        with ForeignRegistry(dialect, klamm_broker.bootstrap, group) as foreign:
            assert not foreign.leads_group
            # It would have the smaller address; a change of leader is spared.
            assert foreign.master_url == registry.url
            assert registry.register("u", A)["id"] == 2
            registry.stop()
            wait_until(lambda: foreign.master_url == foreign.url)
            assert foreign.leads_group


@DIALECTS
def test_klamm_leads_the_group_and_elects_the_foreign_registry(klamm_broker, names, dialect):
    _, group = names
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(running_registry(klamm_broker.bootstrap, *names, eligible=False))
        wait_until(lambda: has_joined(registry))
        foreign = stack.enter_context(ForeignRegistry(dialect, klamm_broker.bootstrap, group, is_small=False))
        assert not foreign.leads_group
        wait_until(lambda: is_led_by(registry, foreign))
        assert foreign.master_url == foreign.url
        check_forwarded(registry, foreign)
        with running_registry(klamm_broker.bootstrap, *names) as heir:
            wait_until(lambda: is_led_by(heir, foreign) or is_led_by(heir, heir))
            foreign.leave()
            check_leads(heir)
            wait_until(lambda: is_led_by(registry, heir))
            assert registry.register("u", A)["id"] == 2


@DIALECTS
def test_a_registry_that_may_not_lead_does_not_lead_if_a_foreign_one_assigns_it(klamm_broker, names, dialect):
    """Karapace assigns a member that may not lead, when no other is there."""
    _, group = names
    with (
        ForeignRegistry(dialect, klamm_broker.bootstrap, group, is_small=False, eligible=False) as foreign,
        running_registry(klamm_broker.bootstrap, *names, eligible=False) as registry,
    ):
        wait_until(lambda: len(foreign.assignments) > 1)
        status, ready = registry.request("GET", "/health/ready")
        assert (status, ready["leading"], ready["leader"]) == (503, False, None)


@DIALECTS
def test_a_foreign_leader_that_dies_is_replaced(klamm_broker, names, dialect):
    """Its address refuses connections before the group notices: a change waits for the election."""
    _, group = names
    with contextlib.ExitStack() as stack:
        foreign = stack.enter_context(ForeignRegistry(dialect, klamm_broker.bootstrap, group))
        registry = stack.enter_context(running_registry(klamm_broker.bootstrap, *names))
        wait_until(lambda: is_led_by(registry, foreign))
        foreign.leave()
        assert registry.register("s", A)["id"] == 1
