"""The table behind --print-metrics of the perf tests: names as Kafka's clients give them, those that were measured."""

from __future__ import annotations

from collections.abc import Mapping

from klamm import __version__


def table(client_id: str, start_ms: int, measured: Mapping[str, float], topic: str | None = None) -> str:
    """Kafka's table; `measured` is `group:name` to value, and a group of topics has the topic in its tags."""
    rows: dict[str, str] = {
        f"app-info:start-time-ms:{{client-id={client_id}}}": str(start_ms),
        f"app-info:version:{{client-id={client_id}}}": __version__,
    }
    for name, value in measured.items():
        tags = f"client-id={client_id}" + (f", topic={topic}" if "topic" in name and topic is not None else "")
        rows[f"{name}:{{{tags}}}"] = f"{value:.3f}"
    width = max(map(len, rows))
    lines = [f"{'Metric Name':<{width}}   Value", *(f"{name:<{width}} : {rows[name]}" for name in sorted(rows))]
    return "\n" + "\n".join(lines)
