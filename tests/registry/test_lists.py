"""Lists of subjects and schemas: the order, prefixes and pages, while subjects come and go."""

import random
from urllib.parse import quote, unquote

import pytest

from klamm.registry.store.subject_order import SubjectOrder
from klamm.registry.store.subjects import matches_prefix, parse_subject

from .small_service import AsgiClient, SmallService
from .small_store import record

TEXTS = [record("R", **{f"f{number}": True}) for number in range(4)]
NAMES = ["a", "b", "ab", "abc", ":x", ":.c:a", ":.c:b", ":.cd:a", ":.d:", ":.d:ab", "z:", "~", "é"]
PREFIXES = ["", "a", "ab", ":", ":x", ":.", ":.c:", ":.c:a", ":.c", ":.d:a", ":*:", ":*:a", ":.e:", "q"]


@pytest.fixture
def http():
    client = AsgiClient(SmallService())
    yield client
    client.close()


def expected_versions(state, prefix, *, deleted, latest_only):
    versions = []
    for subject in sorted((name for name in state.subjects if matches_prefix(name, prefix)), key=str):
        of_subject = state.versions(subject, deleted=deleted)
        versions += of_subject[-1:] if latest_only else of_subject
    return [(str(version.subject), version.version) for version in versions]


def expected_names(state, prefix, *, deleted):
    return list(dict.fromkeys(name for name, _ in expected_versions(state, prefix, deleted=deleted, latest_only=False)))


def change(http, chance):
    name = quote(chance.choice([name for name in NAMES if name != ":.d:"]), safe="")
    kind = chance.random()
    if kind < 0.6:
        http.register(name, chance.choice(TEXTS))
    else:
        http.delete(f"/subjects/{name}")
        if kind < 0.8:
            http.delete(f"/subjects/{name}?permanent=true")


@pytest.mark.parametrize("seed", range(20))
def test_lists_have_the_order_of_a_sort_after_any_changes(http, seed):
    chance = random.Random(seed)
    state = http.service.state
    for _ in range(60):
        change(http, chance)
        prefix, limit, offset = quote(chance.choice(PREFIXES), safe=""), chance.randrange(-1, 4), chance.randrange(6)
        deleted, latest = chance.random() < 0.5, chance.random() < 0.5
        end = None if limit < 1 else offset + limit
        query = f"subjectPrefix={prefix}&deleted={str(deleted).lower()}&offset={offset}&limit={limit}"
        names = expected_names(state, unquote(prefix), deleted=deleted)
        assert http.get(f"/subjects?{query}").json() == names[offset:end], (seed, query)
        versions = expected_versions(state, unquote(prefix), deleted=deleted, latest_only=latest)
        rows = http.get(f"/schemas?{query}&latestOnly={str(latest).lower()}").json()
        assert [(row["subject"], row["version"]) for row in rows] == versions[offset:end], (seed, query)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_pages_one_after_another_have_everything_once(http, size):
    for number in range(10):
        for text in TEXTS[: 1 + number % 3]:
            http.register(f"s{number}", text)
    rows = []
    while page := http.get(f"/schemas?offset={len(rows)}&limit={size}").json():
        assert len(page) <= size
        rows += page
    assert [(row["subject"], row["version"]) for row in rows] == expected_versions(
        http.service.state, "", deleted=False, latest_only=False
    )


def test_a_page_after_a_change_begins_anew(http):
    for name in "bcd":
        http.register(name, TEXTS[0])
    assert http.get("/subjects?limit=2").json() == ["b", "c"]
    http.register("a", TEXTS[0])
    assert http.get("/subjects?offset=2&limit=2").json() == ["c", "d"]


def test_many_changes_between_two_lists_are_sorted_at_once():
    subjects = {}
    order = SubjectOrder(subjects)
    assert order.subjects() == []
    for number in range(3000):
        subject = parse_subject(f"s{number * 7919 % 3000}")
        subjects[subject] = None
        order.note(subject)
    assert order.subjects() == sorted(subjects, key=str)
    for subject in list(subjects)[:10]:
        del subjects[subject]
        order.note(subject)
    assert order.subjects() == sorted(subjects, key=str)
