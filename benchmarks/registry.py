"""Requests to schema registries over one broker: register, look up, check, start with 50,000 schemas, memory.

    python -m benchmarks.registry [--beside URL | --beside-command COMMAND] [--schemas N] [--seconds S] [--rounds N]

Starts a broker and `klamm registry`, each registry over a topic of its own that has the same schemas. Another registry
with Confluent's interface is measured in turns with it: one that runs (--beside, over the broker of --bootstrap and the
topic of --beside-topic, new and empty), or one that is started, so that its start is measured too:

    python -m benchmarks.registry --beside-command 'env KARAPACE_BOOTSTRAP_URI={bootstrap} KARAPACE_PORT={port}
      KARAPACE_HOST=127.0.0.1 KARAPACE_TOPIC_NAME={topic} KARAPACE_GROUP_ID={group} karapace'

Writes results/registry.json.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import klamm.testing
from benchmarks.http_load import (
    HttpLoad,
    RunningService,
    klamm_command,
    measure_load,
    request_bytes,
    rss_mb,
    start_service,
)

RESULTS = Path(__file__).parent / "results" / "registry.json"
SCHEMAS = 50_000
VERSIONS = 100
HUNDRED = "hundred"
"""A subject with a hundred versions, the middle one unlike the others."""
SCHEMA_TYPE = "application/vnd.schemaregistry.v1+json"
LEADER_LIMIT_S = 60.0
"""How long a registry may have no leader after its start."""


def record_schema(name: str, **fields: object) -> str:
    """Return an Avro record: a text, and int fields with defaults, unless `fields` has another type."""
    listed: list[dict[str, object]] = [{"name": "note", "type": "string"}]
    listed += [{"name": key, "type": kind, "default": 0 if kind == "int" else ""} for key, kind in fields.items()]
    schema = {"type": "record", "name": name, "namespace": "bench", "fields": listed}
    return json.dumps(schema, separators=(",", ":"))


def hundred_versions() -> list[str]:
    """Return schemas that can read each other, except the middle one: its `middle` is a text, and an int in the next.

    A registry that compares with all versions reaches it halfway, whether it begins with the first or the last.
    """
    return [
        record_schema("Hundred", **{f"f{version}": "int"}, **({"middle": "string"} if version == VERSIONS // 2 else {}))
        for version in range(1, VERSIONS + 1)
    ]


def topic_records(schemas: int) -> Iterator[tuple[str, str]]:
    """Yield the records of a topic as registries write them: single versions with ids from 1, then the hundred."""
    texts = [(f"subject-{number}", 1, record_schema(f"R{number}", a="int")) for number in range(1, schemas + 1)]
    texts += [(HUNDRED, version, text) for version, text in enumerate(hundred_versions(), 1)]
    for schema_id, (subject, version, text) in enumerate(texts, 1):
        key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
        value = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": False}
        yield json.dumps(key, separators=(",", ":")), json.dumps(value, separators=(",", ":"))


def fill_topic(bootstrap: str, topic: str, schemas: int) -> None:
    """Make the topic of a registry, unless it is there, and write the schemas."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    if topic not in admin.list_topics(timeout=30).topics:
        new = NewTopic(topic, num_partitions=1, replication_factor=1, config={"cleanup.policy": "compact"})
        admin.create_topics([new])[topic].result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "queue.buffering.max.messages": 200_000})
    for key, value in topic_records(schemas):
        producer.produce(topic, key=key.encode(), value=value.encode(), partition=0)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError("not all schemas were written")


@dataclass
class RegistryUnderTest:
    """A registry, and what its loads need."""

    service: RunningService
    schemas: int
    _numbers: Iterator[int]

    @property
    def url(self) -> str:
        return self.service.url

    def prepare(self) -> None:
        """Compare new versions of the hundred with all of them, as soon as the registry takes changes.

        Karapace answers reads while it has no leader, and changes with 500 until then.
        """
        deadline = time.monotonic() + LEADER_LIMIT_S
        while True:
            try:
                return put(f"{self.url}/config/{HUNDRED}", {"compatibility": "BACKWARD_TRANSITIVE"})
            except urllib.error.HTTPError as problem:
                if problem.code < 500 or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def register(self) -> HttpLoad:
        """A new schema for a new subject in every request."""
        return HttpLoad(self.url, self._registrations(), expected=b'"id":')

    def _registrations(self) -> Iterator[bytes]:
        for number in self._numbers:
            body = json.dumps({"schema": record_schema(f"N{number}", b="int")}).encode()
            yield request_bytes(self.url, "POST", f"/subjects/new-{number}/versions", body, SCHEMA_TYPE)

    def look_up_one(self) -> HttpLoad:
        """The same id again and again."""
        return HttpLoad(self.url, itertools.repeat(self._lookup(1)), expected=b'"schema":')

    def look_up_all(self) -> HttpLoad:
        """Another id in every request, as after the start of many clients."""
        requests = [self._lookup(schema_id) for schema_id in range(1, self.schemas + 1)]
        return HttpLoad(self.url, itertools.cycle(requests), expected=b'"schema":')

    def _lookup(self, schema_id: int) -> bytes:
        return request_bytes(self.url, "GET", f"/schemas/ids/{schema_id}")

    def check(self) -> HttpLoad:
        """A check that compares with all versions, and finds one that is incompatible."""
        return HttpLoad(self.url, self._candidates(self._check_path()), expected=b"false")

    def _check_path(self) -> str:
        """Return where this registry compares a schema with all versions.

        Karapace has no path for it: at a transitive level its check with one version compares with all. In a registry
        that compares with that one alone, the candidate is compatible, and the load fails.
        """
        path = f"/compatibility/subjects/{HUNDRED}/versions"
        candidate = json.dumps({"schema": record_schema("Hundred")}).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, candidate, {"Content-Type": SCHEMA_TYPE}), timeout=60
            ):
                return path
        except urllib.error.HTTPError as problem:
            if problem.code != 404:
                raise
            return f"{path}/latest"

    def refuse(self) -> HttpLoad:
        """The same by a registration, which is refused."""
        return HttpLoad(self.url, self._candidates(f"/subjects/{HUNDRED}/versions"), status=409)

    def _candidates(self, path: str) -> Iterator[bytes]:
        for number in self._numbers:
            # Another schema each time: a registry may remember the result of the last one.
            text = record_schema("Hundred", middle="int", **{f"n{number}": "int"})
            yield request_bytes(self.url, "POST", path, json.dumps({"schema": text}).encode(), SCHEMA_TYPE)


# Registrations last: the faster registry has more schemas then, so that its memory cannot be compared any more.
LOADS: dict[str, Callable[[RegistryUnderTest], HttpLoad]] = {
    "lookup one id": RegistryUnderTest.look_up_one,
    "lookup all ids": RegistryUnderTest.look_up_all,
    "check 100 versions": RegistryUnderTest.check,
    "refuse by 100 versions": RegistryUnderTest.refuse,
    "register": RegistryUnderTest.register,
}


def put(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": SCHEMA_TYPE}, method="PUT")
    with urllib.request.urlopen(request, timeout=60):
        pass


def open_registry(command: str, bootstrap: str, name: str, schemas: int) -> RegistryUnderTest:
    """Write the schemas to a new topic and start a registry over it; its start ends with the last of them."""
    topic = f"_schemas-{name}-{time.time_ns()}"
    fill_topic(bootstrap, topic, schemas)
    last = f"/subjects/{HUNDRED}/versions/{VERSIONS}"
    service = start_service(command, last, bootstrap=bootstrap, topic=topic, group=topic)
    return _prepared(RegistryUnderTest(service, schemas, itertools.count(1)))


def join_registry(url: str, pid: int | None, bootstrap: str, topic: str, schemas: int) -> RegistryUnderTest:
    """The same for a registry that runs."""
    fill_topic(bootstrap, topic, schemas)
    registry = RegistryUnderTest(RunningService(url, pid), schemas, itertools.count(1))
    deadline = time.monotonic() + 300
    while True:
        try:
            with urllib.request.urlopen(f"{url}/subjects/{HUNDRED}/versions/{VERSIONS}", timeout=60):
                return _prepared(registry)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _prepared(registry: RegistryUnderTest) -> RegistryUnderTest:
    try:
        registry.prepare()
    except BaseException:
        registry.service.close()
        raise
    return registry


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument("--beside", metavar="URL", help="another registry that runs, over the broker of --bootstrap")
    beside.add_argument("--beside-command", metavar="COMMAND", help="another registry, to be started")
    parser.add_argument("--beside-pid", type=int, metavar="PID", help="the process of --beside, for its memory")
    parser.add_argument("--beside-topic", default="_schemas", help="the topic of --beside")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="a broker that runs, instead of one of its own")
    parser.add_argument("--schemas", type=int, default=SCHEMAS)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.beside and not options.bootstrap:
        parser.error("--beside needs --bootstrap: both registries use one broker")
    if options.bootstrap:
        return run(options, options.bootstrap)
    with klamm.testing.broker(child=True) as broker:
        return run(options, broker.bootstrap)


def run(options: argparse.Namespace, bootstrap: str) -> int:
    registries: dict[str, RegistryUnderTest] = {}
    try:
        registries["klamm"] = open_registry(klamm_command("registry"), bootstrap, "klamm", options.schemas)
        if options.beside_command:
            registries["beside"] = open_registry(options.beside_command, bootstrap, "beside", options.schemas)
        elif options.beside:
            registries["beside"] = join_registry(
                options.beside, options.beside_pid, bootstrap, options.beside_topic, options.schemas
            )
        return report(options, registries)
    finally:
        for registry in registries.values():
            registry.service.close()


def report(options: argparse.Namespace, registries: dict[str, RegistryUnderTest]) -> int:
    runs: dict[str, dict[str, list[dict[str, float]]]] = {}
    failures: dict[str, str] = {}
    for name, registry in registries.items():
        row = {"rss_mb": rss_mb(registry.service.pid)}
        if registry.service.start_s:
            row["seconds"] = registry.service.start_s
        runs.setdefault("start", {})[name] = [row]
    for title, make_load in LOADS.items():
        for _ in range(options.rounds):
            # In turns: both have the same share of a noisy machine.
            for name, registry in registries.items():
                if f"{title}, {name}" in failures:
                    continue
                try:
                    row = measure_load(make_load(registry), registry.service.pid, options.seconds, options.connections)
                except (RuntimeError, OSError, EOFError) as problem:
                    # A request that one of them does not serve leaves the other rows as they are.
                    failures[f"{title}, {name}"] = str(problem)
                    continue
                runs.setdefault(title, {}).setdefault(name, []).append(row)
    medians = {
        title: {
            name: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
            for name, rows in by_name.items()
        }
        for title, by_name in runs.items()
    }
    for title, by_name in medians.items():
        for name, row in by_name.items():
            print(f"{title:24} {name:8} " + "  ".join(f"{key} {value:,.2f}" for key, value in row.items()))
    for title, problem in failures.items():
        print(f"{title}: FAILED: {problem}")
    RESULTS.parent.mkdir(exist_ok=True)
    result = {"settings": vars(options), "medians": medians, "runs": runs, "failures": failures}
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(title.endswith("klamm") for title in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
