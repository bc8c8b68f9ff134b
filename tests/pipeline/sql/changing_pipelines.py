"""Random pipelines that change between runs: columns, types, queries, partitions, late rows, lost commit logs, kill -9.

Each run of a pipeline starts seven queries, so these are for when they are asked for. The runs are in a process of
their own, which is killed in some of them. Results are those of plain Python over the whole history. Everything but the
moment of a kill comes from a seed, which is printed:

    KLAMM_PIPELINE_SEED=7 python -m pytest tests/pipeline/sql/changing_pipelines.py       one seed
    KLAMM_PIPELINE_SEEDS=200 python -m pytest tests/pipeline/sql/changing_pipelines.py     many (make campaign)
"""

import datetime as dt
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import deltalake
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

import klamm
from pipeline.driver_kills import kill
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
CREATE SINK lake WITH (format = '{format}', path = '{lake}') AS SELECT id, who FROM events;
"""
FORMATS = ("delta", "iceberg", "parquet")
KILL_AFTER_S_MAX = 8.0
DOUBLED = "CREATE STREAM doubled WITH (topic = '{doubled}') AS SELECT id, amount * 2 AS twice FROM events;"
USUAL = 3674
"""Two runs, between which everything changes, and of which the second is killed."""


def seeds():
    if one := os.environ.get("KLAMM_PIPELINE_SEED"):
        return [int(one)]
    return range(int(os.environ["KLAMM_PIPELINE_SEEDS"])) if "KLAMM_PIPELINE_SEEDS" in os.environ else [USUAL]


class Driver:
    """The process that runs pipelines, started again when it was killed."""

    def __init__(self, folder):
        self._folder, self._starts, self._number, self._process = folder, 0, 0, None

    def _start(self):
        self._starts, self._number = self._starts + 1, 0
        self._place = self._folder / f"driver{self._starts}"
        self._place.mkdir()
        script = str(Path(__file__).with_name("changing_driver.py"))
        with (self._place / "log").open("wb") as log:
            command = [sys.executable, script, str(self._place)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def run(self, request, kill_after_s=None):
        """Run a pipeline; with `kill_after_s` kill the process so long after the start, and return whether it died."""
        if self._process is None:
            self._start()
        part, number = self._place / "part", self._number
        part.write_text(json.dumps(request))
        part.rename(self._place / f"{number}.run")
        self._number += 1
        done, began = self._place / f"{number}.done", time.monotonic()
        while not done.exists():
            if kill_after_s is not None and time.monotonic() - began > kill_after_s:
                self.stop()
                return True
            assert time.monotonic() - began < 600, (self._place / "log").read_text()
            assert self._process.poll() is None, (self._place / "log").read_text()
            time.sleep(0.05)
        assert not done.read_text(), done.read_text()
        return False

    def stop(self):
        if self._process is not None:
            kill(self._process)
            self._process = None


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    driver = Driver(tmp_path_factory.mktemp("drivers"))
    yield driver
    driver.stop()


class Changes:
    """What changes between two runs; a change stays."""

    def __init__(self, chance):
        self._chance = chance
        self.format = chance.choice(FORMATS)
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

    def kill_after_s(self):
        """Return when the process of a run is killed; None for a run that is not."""
        return self._chance.uniform(0.5, KILL_AFTER_S_MAX) if self._chance.random() < 0.3 else None

    def text(self, names, lake):
        text = TEXT + (DOUBLED if self.doubled else "")
        return text.format(
            **names,
            lake=lake,
            format=self.format,
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

    def __init__(self, driver, broker, admin, name, folder):
        self.driver, self.broker, self.admin = driver, broker, admin
        self.names = {topic: name(topic) for topic in (*INPUTS, *OUTPUTS)}
        self.home, self.lake = folder / "home", folder / "lake"
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

    def run(self, changes, number, kill_after_s=None):
        settings = {"bootstrap": self.broker.bootstrap, "checkpoint": str(self.home), "name": self.names["copies"]}
        text = changes.text(self.names, self.lake)
        request = {"file": f"run{number}.sql", "text": text, "settings": {**settings, "partitions": "2"}}
        if kill_after_s is not None and self.driver.run(request, kill_after_s):
            print(f"run {number}: killed after {kill_after_s:.1f} s")
        self.driver.run(request)

    def lake_rows(self, format):
        """The rows of the lake, by the libraries of others."""
        if format == "delta":
            table = deltalake.DeltaTable(str(self.lake)).to_pyarrow_table()
        elif format == "iceberg":
            catalog = load_catalog("klamm", type="sql", uri=f"sqlite:///{self.lake}/catalog.db")
            table = catalog.load_table("klamm.lake").scan().to_arrow()
        else:
            table = ds.dataset(self.lake, format="parquet").to_table()
        return counted(table.to_pylist())

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
    assert site.lake_rows(changes.format) == counted({"id": row["id"], "who": row["who"]} for row in events)
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
    assert changes.kill_after_s() is None
    grown, replayed = changes.advance()
    history.advance()
    assert changes.kill_after_s() > 3.0
    assert (changes.wider, changes.event_column, changes.person_column, changes.doubled) == (True,) * 4
    assert {"events", "people"} <= set(grown)
    assert len(replayed) > 2
    # A key that has changed its partition.
    assert {row["name"] for row in history.people[0]} & {row["name"] for row in history.people[1]}
    windows, _ = reference.windows(history.events, SIZE_MS, SIZE_MS, DELAY_MS, lambda row: row["who"])
    assert sum(map(len, windows.values())) < len(reference.flat(history.events))


@pytest.mark.parametrize("seed", seeds())
def test_results_equal_a_recomputation(driver, klamm_broker, klamm_admin, klamm_name, tmp_path, seed):
    print("seed", seed)
    chance = random.Random(seed)
    site = Site(driver, klamm_broker, klamm_admin, klamm_name, tmp_path)
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
        # A run that is killed is not counted: the one after it has the same rows.
        site.run(changes, number, changes.kill_after_s())
        check(site, history, changes)
