"""What the metrics listener of a node serves, read with Prometheus' own parser."""

import http.client
import json
import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

_SERVED = re.compile(r"metrics served.*?http://([0-9.]+):(\d+)/metrics")
Address = tuple[str, int]


def get(address: Address, path: str, **headers: str) -> tuple[int, str | None, str]:
    """Status, content type and body."""
    client = http.client.HTTPConnection(*address, timeout=30)
    try:
        client.request("GET", path, headers=headers)
        response = client.getresponse()
        return response.status, response.getheader("Content-Type"), response.read().decode()
    finally:
        client.close()


class Scrape:
    """The samples of one scrape, by name and labels."""

    def __init__(self, address: Address) -> None:
        status, _, text = get(address, "/metrics")
        assert status == 200, text
        self._samples: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = frozenset(sample.labels.items())
                self._samples.setdefault(sample.name, {})[labels] = sample.value

    def value(self, name: str, **labels: str) -> float:
        """The sample with exactly these labels."""
        return self._samples[name][frozenset(labels.items())]

    def find(self, name: str, **labels: str) -> float | None:
        """The same; None if there is none."""
        return self._samples.get(name, {}).get(frozenset(labels.items()))

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all samples that have these labels, perhaps among others; 0 without any."""
        wanted = set(labels.items())
        return sum(value for own, value in self._samples.get(name, {}).items() if wanted <= own)

    def labels(self, name: str) -> list[dict[str, str]]:
        """The labels of all samples of a name."""
        return [dict(labels) for labels in self._samples.get(name, {})]


def check_health(address: Address, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body of a health check."""
    status, _, text = get(address, path)
    return status, json.loads(text)


def served_address(log: str) -> Address:
    """Where a process serves metrics, from the line of its log."""
    match = _SERVED.findall(log)[-1]
    return match[0], int(match[1])
