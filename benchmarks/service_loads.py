"""Loads on the services over a broker: the schema registry and the REST proxy, alone or beside another of their kind.

They run on Klamm's broker only. With `--beside-registry` or `--beside-rest` each load runs on both services in turns,
and the sample has the ratios; see registry.py for the commands.
"""

import time
from collections.abc import Callable
from typing import Any

from benchmarks import loaders, registry, rest
from benchmarks.http_load import HttpLoad, RunningService, klamm_command, measure_load, rss_mb, start_service
from benchmarks.loads import Bench, Load, Reach, Sample

SECONDS = 8.0
CONNECTIONS = 16
OWN, BESIDE = "klamm", "beside"
COMMANDS: dict[str, str] = {}
"""Commands of the services beside Klamm's, by "registry" and "rest"."""
RATE, P99, RSS, START = "requests/s : beside", "p99 beside : own", "RSS beside : own", "start beside : own"


def registries(bench: Bench) -> dict[str, registry.RegistryUnderTest]:
    """Return Klamm's registry and the one beside it, started with the first load that needs them."""

    def open_one(name: str, command: str) -> registry.RegistryUnderTest:
        opened = registry.open_registry(command, bench.broker.bootstrap, name, bench.count(registry.SCHEMAS))
        bench.side_nodes[f"registry-{name}"] = opened.service
        return opened

    return _start_once(bench, "registry", open_one)


def proxies(bench: Bench) -> dict[str, RunningService]:
    """Return Klamm's REST proxy and the one beside it."""

    def open_one(name: str, command: str) -> RunningService:
        service = bench.side_nodes[f"rest-{name}"] = start_service(command, "/topics", bootstrap=bench.broker.bootstrap)
        return service

    return _start_once(bench, "rest", open_one)


def _start_once(bench: Bench, service: str, open_one: Callable[[str, str], Any]) -> dict[str, Any]:
    known = bench.services.get(service)
    if known is None:
        try:
            known = {name: open_one(name, command) for name, command in _commands(service).items()}
        except (RuntimeError, OSError) as problem:
            known = loaders.LoadFailed(f"{service}: {problem}")
        bench.services[service] = known
    # One that did not start fails all of its loads, and is not waited for again.
    if isinstance(known, loaders.LoadFailed):
        raise known
    return known


def _commands(service: str) -> dict[str, str]:
    beside = COMMANDS.get(service)
    return {OWN: klamm_command(service)} | ({BESIDE: beside} if beside else {})


def compare_rows(rows: dict[str, dict[str, float]]) -> Sample:
    """Return a sample of Klamm's row, with ratios to the row beside it; all are better if they are larger."""
    own = rows[OWN]
    sample = {
        "requests/s": own["requests_per_s"],
        "CPU ms/request": own["cpu_ms_per_request"],
        "p99 ms": own["p99_ms"],
        "RSS MB": own["rss_mb"],
    }
    beside = rows.get(BESIDE)
    if beside is not None:
        sample[RATE] = own["requests_per_s"] / beside["requests_per_s"]
        sample[P99] = beside["p99_ms"] / own["p99_ms"]
        sample[RSS] = beside["rss_mb"] / own["rss_mb"]
    return sample


def _measure(bench: Bench, made: dict[str, tuple[HttpLoad, int | None]]) -> Sample:
    rows = {}
    for name, (load, pid) in made.items():
        try:
            rows[name] = measure_load(load, pid, max(SECONDS * bench.scale, 1.0), CONNECTIONS)
        except (RuntimeError, EOFError) as problem:
            raise loaders.LoadFailed(f"{name}: {problem}") from None
    return compare_rows(rows)


def registry_load(make_load: Callable[[registry.RegistryUnderTest], HttpLoad]) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        served = registries(bench)
        return _measure(bench, {name: (make_load(one), one.service.pid) for name, one in served.items()})

    return run


def registry_start(bench: Bench) -> Sample:
    """The start of the registries that the other loads use, and their memory then."""
    own, beside = (registries(bench).get(name) for name in (OWN, BESIDE))
    assert own is not None
    sample = {"seconds": own.service.start_s, "RSS MB": rss_mb(own.service.pid)}
    if beside is not None:
        sample[START] = beside.service.start_s / own.service.start_s
        sample[RSS] = rss_mb(beside.service.pid) / sample["RSS MB"]
    return sample


def rest_load(records: int) -> Callable[[Bench], Sample]:
    def run(bench: Bench) -> Sample:
        served = proxies(bench)
        topic = bench.fresh_topic(f"rest-{records}-{time.time_ns()}", 4)
        made = {name: (rest.produce_load(one.url, topic, records), one.pid) for name, one in served.items()}
        sample = _measure(bench, made)
        sample["records/s"] = sample["requests/s"] * records
        bench.drop_topic(topic)
        return sample

    return run


REACHES = (
    Reach("requests/s"),
    Reach("p99 ms"),
    Reach("RSS MB"),
    Reach(RATE, 3.0, own=True),
    Reach(RSS, 2.0, own=True),
)
# After registrations the faster registry has more schemas, so that memory is not compared.
REGISTER_REACHES = (Reach("requests/s"), Reach("p99 ms"), Reach("RSS MB"), Reach(RATE, 3.0, own=True))
REST_REACHES = (*REACHES, Reach(P99, 2.0, own=True), Reach("records/s"))

SERVICES: tuple[Load, ...] = (
    # First: the memory is that after the start.
    Load(
        "registry-start",
        "schema registry: start with 50,000 schemas",
        registry_start,
        (Reach("seconds"), Reach("RSS MB"), Reach(START, 3.0, own=True), Reach(RSS, 2.0, own=True)),
        warm_ups=0,
        repeats=1,
        only=OWN,
    ),
    *(
        Load(f"registry-{name}", f"schema registry: {title}", registry_load(make_load), reaches, warm_ups=0, only=OWN)
        for name, title, make_load, reaches in (
            ("lookup-one", "look up the same id", registry.RegistryUnderTest.look_up_one, REACHES),
            ("lookup-all", "look up 50,000 ids in turn", registry.RegistryUnderTest.look_up_all, REACHES),
            ("check", "check against 100 versions", registry.RegistryUnderTest.check, REACHES),
            ("refuse", "registration refused by one of 100 versions", registry.RegistryUnderTest.refuse, REACHES),
            # Last: it adds schemas.
            ("register", "register new schemas", registry.RegistryUnderTest.register, REGISTER_REACHES),
        )
    ),
    *(
        Load(
            f"rest-proxy-{records}",
            f"REST proxy: produce requests of {title}",
            rest_load(records),
            REST_REACHES,
            3,
            0,
            OWN,
        )
        for title, records in rest.LOADS.items()
    ),
)
