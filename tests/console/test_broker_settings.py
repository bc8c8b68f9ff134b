"""Dynamic settings of brokers: checked by the cluster, shown as a difference, changed and audited."""

import re

import pytest

from klamm.client.admin.config_types import ConfigEntry
from klamm.console.core.broker_settings import plan_setting, read_own_value
from klamm.model.config_resources import ConfigResource
from klamm.model.config_sources import ConfigSource, ConfigSynonym

SETTING = "log.cleaner.threads"
OWN, OF_ALL, STATIC, DEFAULT = (
    ConfigSource.DYNAMIC_BROKER_CONFIG,
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
    ConfigSource.STATIC_BROKER_CONFIG,
    ConfigSource.DEFAULT_CONFIG,
)


def read_sources(broker, number, setting=SETTING):
    """The value of a broker, and the sources that have one."""
    resource = ConfigResource.broker(number)
    with broker.admin() as admin:
        entry = admin.describe_configs([resource], keys=[setting], synonyms=True)[resource][setting]
    return entry.value, entry.source


@pytest.fixture
def number(broker):
    with broker.admin() as admin:
        return admin.describe_cluster().brokers[0].id


def rows_of(page):
    """The texts of the plan's cells, by broker."""
    rows = re.findall(r'<tr><th scope="row">(\d+)</th>(.*?)</tr>', page)
    return {
        int(broker): [" ".join(re.sub(r"<[^>]+>", " ", cell).split()) for cell in cells.split("</td>")]
        for broker, cells in rows
    }


@pytest.mark.parametrize(("scope", "source"), [("broker", OWN), ("all", OF_ALL)])
def test_a_setting_is_checked_shown_changed_and_taken_back(broker, visit, number, scope, source):
    before, _ = read_sources(broker, number)
    page, path = f"/c/test/brokers/{number}", f"/c/test/brokers/{number}/settings"
    form = {"setting": SETTING, "value": str(int(before) + 1), "scope": scope}
    assert f'value="{SETTING}"' in visit.get(f"{page}?edit={SETTING}")
    plan = visit.post(page, path, preview="1", **form)
    assert "The cluster has checked the value. Nothing is changed yet." in plan
    assert rows_of(plan)[number][2] == form["value"]
    assert read_sources(broker, number)[0] == before
    place = "all brokers" if scope == "all" else f"broker {number}"
    assert f"Changed {SETTING} of {place}." in visit.post(page, path, **form)
    assert read_sources(broker, number) == (form["value"], source)
    again = visit.post(page, path, preview="1", reset="1", **form)
    assert rows_of(again)[number][2] == before
    assert f"Took back {SETTING} of {place}." in visit.post(page, path, reset="1", **form)
    assert read_sources(broker, number)[0] == before
    audited = visit.get("/c/test/audit?q=change+broker+setting")
    assert place in audited
    assert SETTING in audited


@pytest.mark.parametrize(
    "fields",
    [
        {"setting": SETTING, "value": "many"},
        {"setting": "broker.id", "value": "7"},
    ],
)
def test_a_value_that_the_cluster_refuses_cannot_be_saved(visit, number, fields):
    page, path = f"/c/test/brokers/{number}", f"/c/test/brokers/{number}/settings"
    plan = visit.post(page, path, preview="1", scope="broker", **fields)
    assert 'role="alert"' in plan
    assert ">Save</button>" not in plan


def test_a_setting_needs_a_name_and_a_broker(visit, number):
    page = f"/c/test/brokers/{number}"
    visit.post(page, f"{page}/settings", 400, value="1")
    visit.post(page, f"{page}/settings", 400, setting="no.such.setting", value="1", preview="1")
    visit.post(page, "/c/test/brokers/999/settings", 404, setting=SETTING, value="1")


# Pure parts


def entry(value, source, *synonyms, sensitive=False):
    listed = tuple(ConfigSynonym("num.io.threads", text, of) for text, of in synonyms)
    return ConfigEntry("num.io.threads", value, source, sensitive=sensitive, synonyms=listed)


OWN_VALUE = entry("16", OWN, ("16", OWN), ("12", OF_ALL), ("8", DEFAULT))
SHARED = entry("12", OF_ALL, ("12", OF_ALL), ("4", STATIC), ("8", DEFAULT))
ENTRIES = {1: OWN_VALUE, 2: SHARED, 3: None}


@pytest.mark.parametrize(
    ("broker", "value", "after"),
    [
        (1, "20", {1: "20"}),
        (1, None, {1: "12"}),
        (None, "20", {1: "16", 2: "20", 3: None}),
        (None, None, {1: "16", 2: "4", 3: None}),
    ],
)
def test_a_plan_has_the_value_of_each_broker(broker, value, after):
    plan = plan_setting(ENTRIES, broker, value)
    assert {change.broker: change.after for change in plan} == after


def test_secrets_are_hidden_in_a_plan_and_in_the_audit():
    secret = entry("hunter2", OWN, ("hunter2", OWN), sensitive=True)
    (change,) = plan_setting({1: secret}, 1, "hunter3")
    assert "hunter" not in change.before + (change.after or "")
    assert read_own_value([secret], 1) == ""
    assert (read_own_value([OWN_VALUE], 1), read_own_value([OWN_VALUE], None)) == ("16", "12")
    assert read_own_value([SHARED], 2) is None
