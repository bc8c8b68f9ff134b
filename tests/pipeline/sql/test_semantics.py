"""Each feature of the SQL over random rows in random steps: what comes out is what plain Python says.

One pipeline has them all, because a start of a query is what costs. Sizes, delays, rows and steps come from a seed,
which is printed:

    KLAMM_PIPELINE_SEED=7 python -m pytest tests/pipeline/sql/test_semantics.py        one seed
    KLAMM_PIPELINE_SEEDS=200 python -m pytest tests/pipeline/sql/test_semantics.py     many (make campaign)
"""

import datetime as dt
import os
import random
import string
from collections import Counter, defaultdict

import pytest

from klamm.pipeline.testing import Deleted, Raw, run
from pipeline.sql import reference

pytestmark = pytest.mark.timeout(600)
FIRST_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z"""
PIPELINE = """
CREATE FUNCTION capitals RETURNS STRING AS 'string:capwords';

CREATE STREAM events (id BIGINT NOT NULL, who STRING, amount INT, tags ARRAY<STRING>, at TIMESTAMP)
  WITH (key = 'who', timestamp = 'at', watermark = '{delay} milliseconds');
CREATE STREAM clicks (id BIGINT, who STRING, at TIMESTAMP)
  WITH (timestamp = 'at', watermark = '{click_delay} milliseconds', bad_records = 'drop');
CREATE STREAM clicks_once (id BIGINT, who STRING, at TIMESTAMP)
  WITH (topic = 'clicks', deduplicate = 'id', bad_records = 'drop');
CREATE STREAM clicks_once_within (id BIGINT, who STRING, at TIMESTAMP)
  WITH (topic = 'clicks', timestamp = 'at', watermark = '{delay} milliseconds', deduplicate = 'id',
        bad_records = 'drop');
CREATE TABLE people (name STRING, city STRING) WITH (key = 'name', bad_records = 'drop');
CREATE TABLE cities (name STRING NOT NULL, country STRING) WITH (key = 'name');

CREATE VIEW some AS SELECT * FROM events WHERE amount > {least};
CREATE VIEW places AS SELECT p.name, c.country FROM people p JOIN cities c ON p.city = c.name;

-- Row by row.
CREATE STREAM filtered AS SELECT id, amount * 2 AS twice, at FROM some WHERE who <> 'a';
CREATE STREAM tagged WITH (key = 'tag') AS SELECT id, explode(tags) AS tag FROM events;
CREATE STREAM both WITH (key = 'id') AS SELECT id, who FROM events UNION ALL SELECT -id, who FROM clicks;
CREATE STREAM spoken AS SELECT id, capitals(concat(who, ' and ', id)) AS words FROM events WHERE who IS NOT NULL;
CREATE STREAM first_clicks AS SELECT id, who, at FROM clicks_once;
CREATE STREAM near_clicks AS SELECT id, who, at FROM clicks_once_within;

-- Groups.
CREATE TABLE totals WITH (delete_when = 'total = 0') AS
  SELECT who, sum(amount) AS total, count(*) AS n, min(id) AS first_id FROM events GROUP BY who;
CREATE TABLE tumbling WITH (key = 'who, start') AS
  SELECT who, window.start, sum(amount) AS total, count(*) AS n FROM some
  GROUP BY who, window(at, '{size} milliseconds');
CREATE TABLE tumbling_final WITH (key = 'who, start', emit = 'final') AS
  SELECT who, window.start, count(*) AS n FROM events GROUP BY who, window(at, '{size} milliseconds');
CREATE STREAM hopping AS
  SELECT window.start, window.end, count(*) AS n, max(amount) AS most FROM events
  GROUP BY window(at, '{size} milliseconds', '{slide} milliseconds');
CREATE TABLE visits WITH (key = 'who, start') AS
  SELECT who, session_window.start, session_window.end, count(*) AS n
  FROM events GROUP BY who, session_window(at, '{gap} milliseconds');

-- Joins.
CREATE STREAM clicked WITH (key = 'id') AS
  SELECT e.id, c.id AS click, c.at FROM events e JOIN clicks c
    ON e.who = c.who AND c.at BETWEEN e.at AND e.at + INTERVAL '{longest}' SECOND;
CREATE STREAM clicked_or_not AS
  SELECT e.id, c.id AS click FROM events e LEFT JOIN clicks c
    ON e.who = c.who AND c.at BETWEEN e.at AND e.at + INTERVAL '{longest}' SECOND;
CREATE STREAM placed AS SELECT e.id, p.city FROM events e LEFT JOIN people p ON e.who = p.name;
CREATE TABLE homes WITH (key = 'name') AS SELECT * FROM places;
CREATE TABLE wealth WITH (key = 'country') AS
  SELECT h.country, sum(t.total) AS total FROM totals t JOIN homes h ON t.who = h.name GROUP BY h.country;
"""
BAD = [
    b"{no json",
    b"",
    b'{"id": "seven"}',
    b'{"id": 7, "amount": 3000000000}',
    b'{"id": 7, "tags": "one"}',
    b'{"id": 7, "at": "noon"}',
    b'{"who": "a"}',
    b"null",
    None,
]
BAD_CITIES = [(b"x", b"{no json"), (None, b'{"name": "x", "country": "p"}'), (b"y", b'{"country": []')]
USUAL = 2021
"""The seed of the usual tests: two steps with something of everything."""


def seeds():
    if one := os.environ.get("KLAMM_PIPELINE_SEED"):
        return [int(one)]
    return range(int(os.environ["KLAMM_PIPELINE_SEEDS"])) if "KLAMM_PIPELINE_SEEDS" in os.environ else [USUAL]


def text(time_ms):
    if time_ms is None:
        return None
    moment = dt.datetime.fromtimestamp(time_ms // 1000, dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}000Z"


class Inputs:
    """Random histories, as the reference reads them and as the pipeline does."""

    def __init__(self, seed):
        chance = self._chance = random.Random(seed)
        self.sizes = {
            "delay": chance.choice([0, 3_000, 10_000]),
            "click_delay": chance.choice([0, 5_000]),
            "least": chance.choice([-2, 0, 1]),
            "size": chance.choice([4_000, 10_000]),
            "slide": chance.choice([1_000, 2_000, 4_000]),
            "gap": chance.choice([1_000, 3_000, 5_000]),
            "longest": chance.choice([0, 2, 8]),
        }
        self.events, self.clicks, self.people, self.cities = [], [], [], []
        self.given, self.bad, self.bad_cities = [], [], []
        self._id = self._records = 0
        now = FIRST_MS
        for _ in range(chance.randint(2, 4)):
            self._step(now)
            now += chance.choice([0, 1_000, 8_000, 40_000])

    def _time(self, now):
        exact = self._chance.random() < 0.7
        return now + self._chance.randint(-12, 3) * 1000 + (0 if exact else self._chance.randint(0, 999))

    def _step(self, now):
        chance = self._chance
        records = []
        self.events.append([])
        for _ in range(chance.choice([0, 5, 20, 40])):
            if chance.random() < 0.15:
                self.bad.append((chance.choice(BAD), self._records))
                records.append(Raw(b"k", self.bad[-1][0]))
            else:
                self.events[-1].append(self._event(now))
                records.append(_as_input(self.events[-1][-1]))
            self._records += 1
        self.clicks.append([self._click(now) for _ in range(chance.choice([0, 3, 15, 30]))])
        self.people.append(self._changes("abcd", "city", "xyz", chance.choice([0, 3, 8])))
        self.cities.append(self._changes("xyz", "country", "pq", chance.choice([0, 2, 6])))
        broken = [Raw(*city) for city in BAD_CITIES if chance.random() < 0.1]
        self.bad_cities += [row.value for row in broken]
        given = {"clicks": self.clicks, "people": self.people, "cities": self.cities}
        given = {name: [_as_input(row) for row in history[-1]] for name, history in given.items()}
        self.given.append({**given, "events": records, "cities": given["cities"] + broken})

    def _event(self, now):
        self._id += 1
        return {
            "id": self._id,
            "who": self._chance.choice(["a", "b", "c", "d", None]),
            "amount": self._chance.choice([None, 0, 1, 1, 2, -1, -2]),
            "tags": self._chance.choice([None, [], ["x"], ["x", "y"], ["y", "y", None]]),
            "at": None if self._chance.random() < 0.05 else self._time(now),
        }

    def _click(self, now):
        chance = self._chance
        return {"id": chance.randint(1, 20), "who": chance.choice(["a", "b", "c", None]), "at": self._time(now)}

    def _changes(self, names, column, values, count):
        rows = [
            {"name": self._chance.choice(names), column: self._chance.choice([*values, None])} for _ in range(count)
        ]
        return [{"name": row["name"]} if self._chance.random() < 0.3 else row for row in rows]


def _as_input(row):
    """A row as the pipeline is given it; of a deletion there is only the key."""
    if len(row) == 1:
        return Deleted(**row)
    return {**row, "at": text(row["at"])} if "at" in row else row


def total(rows):
    amounts = [row["amount"] for row in rows if row["amount"] is not None]
    return sum(amounts) if amounts else None


def expected(inputs):
    """Rows of each output, by the reference; and the changes of those tables that tell of them."""
    sizes, events, clicks = inputs.sizes, inputs.events, inputs.clicks
    delays = sizes["delay"], sizes["click_delay"]
    size, longest = sizes["size"], sizes["longest"] * 1000
    rows = {}

    every = reference.flat(events)
    rows["filtered"] = [
        {"id": row["id"], "twice": row["amount"] * 2, "at": text(row["at"])}
        for row in every
        if _fits(row, sizes) and row["who"] not in (None, "a")
    ]
    rows["tagged"] = [{"id": row["id"], "tag": tag} for row in every for tag in row["tags"] or []]
    rows["both"] = [{"id": row["id"], "who": row["who"]} for row in every]
    rows["both"] += [{"id": -row["id"], "who": row["who"]} for row in reference.flat(clicks)]
    rows["spoken"] = [
        {"id": row["id"], "words": string.capwords(f"{row['who']} and {row['id']}")}
        for row in every
        if row["who"] is not None
    ]
    rows["first_clicks"] = [{**row, "at": text(row["at"])} for row in reference.once(clicks, "id")]
    near = reference.once_within(clicks, "id", sizes["delay"])
    rows["near_clicks"] = [{**row, "at": text(row["at"])} for row in near]

    def by_who(row):
        return row["who"]

    rows["tumbling"] = _tumbling(inputs)
    closed = reference.ended(reference.windows(events, size, size, delays[0], by_who), size)
    rows["tumbling_final"] = [
        {"who": who, "start": text(start), "n": len(inside)} for (who, start), inside in closed.items()
    ]
    closed = reference.ended(reference.windows(events, size, sizes["slide"], delays[0], lambda _: None), size)
    rows["hopping"] = [
        {
            "start": text(start),
            "end": text(start + size),
            "n": len(inside),
            "most": max((row["amount"] for row in inside if row["amount"] is not None), default=None),
        }
        for (_, start), inside in closed.items()
    ]
    rows["visits"] = [
        {"who": who, "start": text(start), "end": text(end), "n": len(inside)}
        for who, start, end, inside in reference.sessions(events, sizes["gap"], delays[0], by_who)
    ]
    named = [[row for row in step if row["who"] is not None] for step in events]
    named_clicks = [[row for row in step if row["who"] is not None] for step in clicks]
    pairs, _ = reference.joined(named, named_clicks, "who", longest, delays)
    rows["clicked"] = [{"id": one["id"], "click": other["id"], "at": text(other["at"])} for one, other in pairs]
    pairs, alone = reference.joined(events, named_clicks, "who", longest, delays)
    rows["clicked_or_not"] = [{"id": one["id"], "click": other["id"]} for one, other in pairs]
    rows["clicked_or_not"] += [{"id": row["id"], "click": None} for row in alone]
    people, cities = reference.tables(inputs.people, "name"), reference.tables(inputs.cities, "name")
    rows["placed"] = [
        {"id": row["id"], "city": now.get(row["who"], {}).get("city")}
        for step, now in zip(events, people, strict=True)
        for row in step
    ]
    totals = reference.aggregated([[row for row in step if row["who"] is not None] for step in events], by_who, _totals)
    changes = {"totals": [change for step in totals for change in step.items()]}
    homes = [_homes(*now) for now in zip(people, cities, strict=True)]
    changes["homes"] = reference.differences(homes)
    wealth = [_wealth(*now) for now in zip(reference.upserted(totals), homes, strict=True)]
    changes["wealth"] = reference.differences(wealth)
    return rows, changes


def _fits(row, sizes):
    return row["amount"] is not None and row["amount"] > sizes["least"]


def _tumbling(inputs):
    """A WHERE that does not ask for the time comes before the watermark."""
    sizes = inputs.sizes
    some = [[row for row in step if _fits(row, sizes)] for step in inputs.events]
    windows, _ = reference.windows(some, sizes["size"], sizes["size"], sizes["delay"], lambda row: row["who"])
    return [
        {"who": who, "start": text(start), "total": total(inside), "n": len(inside)}
        for (who, start), inside in windows.items()
    ]


def _totals(rows):
    amount = total(rows)
    first_id = min(row["id"] for row in rows)
    return {"who": rows[0]["who"], "total": amount, "n": len(rows), "first_id": first_id} if amount != 0 else None


def _homes(people, cities):
    return {
        name: {"name": name, "country": cities[person["city"]]["country"]}
        for name, person in people.items()
        if person["city"] in cities
    }


def _wealth(totals, homes):
    groups = defaultdict(list)
    for who, row in totals.items():
        if who in homes and homes[who]["country"] is not None:
            groups[homes[who]["country"]].append({"amount": row["total"]})
    return {country: {"country": country, "total": total(rows)} for country, rows in groups.items()}


def by_key(changes):
    """Records of each key, in order."""
    groups = defaultdict(list)
    for key, value in changes:
        groups[key if isinstance(key, bytes) else key.encode()].append(value)
    return dict(groups)


def test_the_usual_seed_has_something_of_everything():
    inputs = Inputs(USUAL)
    rows, changes = expected(inputs)
    assert len(inputs.given) == 2
    assert inputs.bad
    assert [name for name, outputs in rows.items() if not outputs] == []
    assert [name for name, pairs in changes.items() if None not in [row for _, row in pairs]] == []
    assert None in [row["click"] for row in rows["clicked_or_not"]]
    at_once = Inputs(USUAL)
    at_once.events = [reference.flat(inputs.events)]  # then nothing is late
    assert sum(row["n"] for row in _tumbling(at_once)) > sum(row["n"] for row in _tumbling(inputs))


@pytest.mark.parametrize("seed", seeds())
def test_what_comes_out_is_what_plain_python_says(spark, seed):
    print("seed", seed)
    inputs = Inputs(seed)
    # Spark interprets or compiles what it runs: by turns, as they need not agree.
    how = {"spark.sql.codegen.factoryMode": "FALLBACK"} if seed % 4 == 3 else None
    out = run(PIPELINE.format(**inputs.sizes), inputs.given, settings=how, spark=spark)
    rows, changes = expected(inputs)
    for name, wanted in rows.items():
        out.expect(name, wanted)
    for name, wanted in changes.items():
        assert by_key(out.changes[name]) == by_key(wanted), name
    assert {*rows, *changes} == set(out)
    for name in ("tumbling_final", "visits"):
        assert len(out.changes[name]) == len(rows[name]), f"{name} said something twice"
    assert Counter(key for key, _ in out.changes["tagged"]) == Counter(
        None if row["tag"] is None else row["tag"].encode() for row in rows["tagged"]
    )
    assert [(event.value, event.offset) for event in out.dead_letters["events"]] == inputs.bad
    assert [city.value for city in out.dead_letters["cities"]] == inputs.bad_cities
