"""Random pipelines that change between runs: columns, types, queries, partitions, late rows, lost commit logs.

Each run of a pipeline starts six queries, so these are for when they are asked for. Results are those of
plain Python over the whole history. Everything comes from a seed, which is printed:

    KLAMM_PIPELINE_SEED=7 python -m pytest tests/pipeline/sql/changing_pipelines.py       one seed
    KLAMM_PIPELINE_SEEDS=40 python -m pytest tests/pipeline/sql/changing_pipelines.py     many (make campaign)
"""

import datetime as dt
import json
import os
import random
from collections import Counter

import pytest

import klamm
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from pipeline.sql import reference

pytestmark = pytest.mark.timeout(900)
FIRST_MS = 1_767_225_600_000
DELAY_MS, SIZE_MS = 5_000, 10_000
INPUTS = ("events", "people", "cities")
OUTPUTS = ("copies", "totals", "windows", "placed", "homes", "doubled")
TEXT = """
CREATE STREAM events (id BIGINT, who STRING, amount {amount}, {event_column} at TIMESTAMP) WITH (
  topic = '{events}', key = 'who', timestamp = 'at', watermark = '5 seconds', bad_records = 'drop');
CREATE TABLE people (name STRING, {person_column} city STRING) WITH (
  topic = '{people}', key = 'name', bad_records = 'drop');
CREATE TABLE cities (name STRING, country STRING) WITH (topic = '{cities}', key = 'name', bad_records = 'drop');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT id, who, amount FROM events;
CREATE TABLE totals WITH (topic = '{totals}') AS
  SELECT who, sum(amount) AS total, count(*) AS n FROM events GROUP BY who;
CREATE TABLE windows WITH (topic = '{windows}', key = 'who, start') AS
  SELECT who, window.start, count(*) AS n FROM events GROUP BY who, window(at, '10 seconds');
CREATE STREAM placed WITH (topic = '{placed}') AS
  SELECT e.id, p.city FROM events e LEFT JOIN people p ON e.who = p.name;
CREATE TABLE homes WITH (topic = '{homes}', key = 'name') AS
  SELECT p.name, c.country FROM people p JOIN cities c ON p.city = c.name;
"""
DOUBLED = "CREATE STREAM doubled WITH (topic = '{doubled}') AS SELECT id, amount * 2 AS twice FROM events;"
USUAL = 12333
"""Two runs, between which everything changes."""


def seeds():
    if one := os.environ.get("KLAMM_PIPELINE_SEED"):
        return [int(one)]
    return range(int(os.environ["KLAMM_PIPELINE_SEEDS"])) if "KLAMM_PIPELINE_SEEDS" in os.environ else [USUAL]


class Changes:
    """What changes between two runs; a change stays."""

    def __init__(self, chance):
        self._chance = chance
        self.wider = self.event_column = self.person_column = self.doubled = False

    def advance(self):
        """Change some things; return the topics that get partitions, and the queries that lose their newest commit."""
        chance = self._chance
        self.wider |= chance.random() < 0.5
        self.event_column |= chance.random() < 0.5
        self.person_column |= chance.random() < 0.5
        self.doubled |= chance.random() < 0.5
        grown = [topic for topic in INPUTS if chance.random() < 0.4]
        return grown, [query for query in OUTPUTS[:-1] if chance.random() < 0.3]

    def text(self, names):
        text = TEXT + (DOUBLED if self.doubled else "")
        return text.format(
            **names,
            amount="BIGINT" if self.wider else "INT",
            event_column="note STRING," if self.event_column else "",
            person_column="age INT," if self.person_column else "",
        )


class History:
    """Random rows in steps, as the reference reads them."""

    def __init__(self, chance):
        self._chance = chance
        self.events, self.people, self.cities = [], [], []
        self._id = 0
        self._now_ms = FIRST_MS

    def advance(self):
        chance = self._chance
        self._now_ms += chance.choice([2_000, 15_000, 40_000])
        self.events.append([self._event() for _ in range(chance.randint(3, 25))])
        self.people.append(self._rows("abcd", "city", "xyz", chance.randint(0, 5)))
        self.cities.append(self._rows("xyz", "country", "pq", chance.randint(0, 4)))

    def _event(self):
        self._id += 1
        # Some are late: 30 seconds are more than the delay and a window.
        at_ms = self._now_ms - self._chance.choice([0, 1_000, 4_000, 9_000, 30_000])
        chance = self._chance
        return {"id": self._id, "who": chance.choice("abcd"), "amount": chance.randint(-5, 9), "at": at_ms}

    def _rows(self, names, column, values, count):
        rows = [{"name": self._chance.choice(names), column: self._chance.choice(values)} for _ in range(count)]
        return [{"name": row["name"]} if self._chance.random() < 0.3 else row for row in rows]


def time_text(time_ms):
    moment = dt.datetime.fromtimestamp(time_ms // 1000, dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{time_ms % 1000:03d}000Z"


class Site:
    """The pipeline's topics and folder on a broker."""

    def __init__(self, spark, patiently, broker, admin, name, folder):
        self.spark, self.patiently, self.broker, self.admin = spark, patiently, broker, admin
        self.names = {topic: name(topic) for topic in (*INPUTS, *OUTPUTS)}
        self.home = folder / "home"
        self.partitions = dict.fromkeys(INPUTS, 1)
        for topic in INPUTS:
            admin.create_topic(self.names[topic], 1)

    def grow(self, topic):
        self.partitions[topic] += 2
        self.admin.create_partitions({self.names[topic]: self.partitions[topic]})

    def lose_commit(self, query):
        """Remove the newest entry of a query's commit log: Spark runs the batch again."""
        folder = self.home / f"{query}.0" / "commits"
        newest = max((int(path.name) for path in folder.iterdir() if path.name.isdecimal()), default=None)
        for name in (f"{newest}", f".{newest}.crc"):
            (folder / name).unlink(missing_ok=True)

    def send(self, history):
        with self.broker.producer() as producer:
            for row in history.events[-1]:
                value = json.dumps({**row, "at": time_text(row["at"])}).encode()
                producer.send(self.names["events"], value, key=row["who"].encode())
            for topic, rows in (("people", history.people[-1]), ("cities", history.cities[-1])):
                for row in rows:
                    value = json.dumps(row).encode() if len(row) > 1 else None
                    producer.send(self.names[topic], value, key=row["name"].encode())

    def run(self, changes, number):
        settings = {"bootstrap": self.broker.bootstrap, "checkpoint": str(self.home), "name": self.names["copies"]}
        pipeline = compile_text(changes.text(self.names), f"run{number}.sql", {**settings, "partitions": "2"})
        self.patiently(run_pipeline, pipeline, once=True, spark=self.spark)

    def rows(self, topic):
        table = klamm.read_topic(self.names[topic], bootstrap=self.broker.bootstrap, timeout_s=60)
        return [(row["key"], None if row["value"] is None else json.loads(row["value"])) for row in table.to_pylist()]

    def stream(self, topic):
        return Counter(json.dumps(row, sort_keys=True) for _, row in self.rows(topic))

    def table(self, topic):
        """The rows of a table, without their keys; partitions of the output do not change."""
        newest = dict(self.rows(topic))
        return Counter(json.dumps(row, sort_keys=True) for row in newest.values() if row is not None)


def counted(rows):
    return Counter(json.dumps(row, sort_keys=True) for row in rows)


def check(site, history, changes):
    events = reference.flat(history.events)
    assert site.stream("copies") == counted({name: row[name] for name in ("id", "who", "amount")} for row in events)
    if changes.doubled:
        assert site.stream("doubled") == counted({"id": row["id"], "twice": row["amount"] * 2} for row in events)
    groups = {who: [row["amount"] for row in events if row["who"] == who] for who in "abcd"}
    assert site.table("totals") == counted(
        {"who": who, "total": sum(amounts), "n": len(amounts)} for who, amounts in groups.items() if amounts
    )
    windows, _ = reference.windows(history.events, SIZE_MS, SIZE_MS, DELAY_MS, lambda row: row["who"])
    assert site.table("windows") == counted(
        {"who": who, "start": time_text(start), "n": len(rows)} for (who, start), rows in windows.items()
    )
    people, cities = reference.tables(history.people, "name"), reference.tables(history.cities, "name")
    assert site.stream("placed") == counted(
        {"id": row["id"], "city": now.get(row["who"], {}).get("city")}
        for rows, now in zip(history.events, people, strict=True)
        for row in rows
    )
    assert site.table("homes") == counted(
        {"name": name, "country": cities[-1][person["city"]]["country"]}
        for name, person in people[-1].items()
        if person["city"] in cities[-1]
    )


def test_the_usual_seed_has_something_of_everything():
    chance = random.Random(USUAL)
    history, changes = History(chance), Changes(chance)
    history.advance()
    grown, replayed = changes.advance()
    history.advance()
    assert (changes.wider, changes.event_column, changes.person_column, changes.doubled) == (True,) * 4
    assert {"events", "people"} <= set(grown)
    assert len(replayed) > 2
    # A key that has changed its partition.
    assert {row["name"] for row in history.people[0]} & {row["name"] for row in history.people[1]}
    windows, _ = reference.windows(history.events, SIZE_MS, SIZE_MS, DELAY_MS, lambda row: row["who"])
    assert sum(map(len, windows.values())) < len(reference.flat(history.events))


@pytest.mark.parametrize("seed", seeds())
def test_results_equal_a_recomputation(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path, seed):
    print("seed", seed)
    chance = random.Random(seed)
    site = Site(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path)
    history, changes = History(chance), Changes(chance)
    runs = 2 if seed == USUAL else chance.randint(2, 5)
    for number in range(runs):
        if number:
            grown, replayed = changes.advance()
            print(f"run {number}: {vars(changes)} {grown=} {replayed=}")
            for topic in grown:
                site.grow(topic)
            for query in replayed:
                site.lose_commit(query)
        history.advance()
        site.send(history)
        site.run(changes, number)
        check(site, history, changes)
