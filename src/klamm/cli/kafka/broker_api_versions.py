"""kafka-broker-api-versions: the versions of each API that brokers serve, and which a client of 4.3 would use."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flags, require
from klamm.cli.kafka.script import connect, read_flags, run_check

FLAGS: Final = Flags("kafka-broker-api-versions", BOOTSTRAP, COMMAND_CONFIG)
TELEMETRY: Final = {71: ("GetTelemetrySubscriptions", (0, 0)), 72: ("PushTelemetry", (0, 0))}
"""APIs of Java's client that this code has no messages for."""


def main(args: list[str]) -> int:
    """Run kafka-broker-api-versions."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(require, parsed, "bootstrap-server"))
    from klamm.cli.queries.cluster import describe_api_versions, describe_cluster

    with connect(parsed) as cluster:
        for broker in describe_cluster(cluster).brokers:
            # A fenced broker may not answer, and Metadata, which the JVM tool uses, does not list it.
            if broker.fenced:
                continue
            versions = describe_api_versions(cluster, broker.id)
            where = f"{broker.host}:{broker.port} (id: {broker.id} rack: {broker.rack or 'null'} isFenced: false)"
            print(f"{where} -> (\n\t{_format_versions(versions)}\n)")
    return 0


def _format_versions(spoken: Mapping[int, tuple[int, int]]) -> str:
    known = _client_apis()
    lines = []
    for key in sorted({*known, *spoken}):
        # A broker may be newer than this client and serve APIs without a name here.
        name, (_, latest) = known.get(key, ("UNKNOWN", (0, -1)))
        if key not in spoken:
            lines.append(f"{name}({key}): UNSUPPORTED")
            continue
        first, last = spoken[key]
        shown = str(first) if first == last else f"{first} to {last}"
        usable = min(last, latest)
        note = f" [usable: {usable}]" if usable >= first else " [unusable: node too new]" if key in known else ""
        lines.append(f"{name}({key}): {shown}{note}")
    return ",\n\t".join(lines)


def _client_apis() -> dict[int, tuple[str, tuple[int, int]]]:
    """The APIs of a client, key to name and versions."""
    from klamm.protocol.apis import BY_NAME

    apis = {api.key: (api.name, api.versions) for api in BY_NAME.values() if api.key in _CLIENT_KEYS}
    return {**apis, **TELEMETRY}


_BETWEEN_NODES: Final = frozenset({*range(4, 8), *range(52, 55), 56, 58, 59, 62, 63, 67, 70, 73, 82})
"""APIs between brokers and controllers."""
_CLIENT_KEYS: Final = frozenset(range(93)) - _BETWEEN_NODES
