# ruff: noqa: INP001, T201 - a script of the Makefile, which prints
"""Compares the pinned dependencies with the public record of vulnerabilities (OSV).

    python tools/audit.py [constraints.txt]

Exits with 1 for a dependency with a known vulnerability, and with 2 if the record cannot be reached or its answer is
not understood: no answer is no sign of health.
"""

from __future__ import annotations

import http.client
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

OSV_URL: Final = "https://api.osv.dev/v1/querybatch"
TIMEOUT_SECONDS: Final = 30
QUERIES_MAX: Final = 500
"""OSV takes 1000 queries in one request."""

_PIN: Final = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[^\s;#]+)")

Pin = tuple[str, str]
Ask = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""Sends a batch of queries and returns the answer."""


def parse_pins(lines: Iterable[str]) -> list[Pin]:
    """Return name and version of each line `name==version`."""
    matches = (_PIN.match(line.strip()) for line in lines)
    return [(match["name"], match["version"]) for match in matches if match is not None]


def find_vulnerabilities(pins: Sequence[Pin], ask: Ask) -> dict[Pin, list[str]]:
    """Return the ids of the known vulnerabilities of each dependency that has some."""
    vulnerable: dict[Pin, list[str]] = {}
    for start in range(0, len(pins), QUERIES_MAX):
        part = pins[start : start + QUERIES_MAX]
        queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in part]
        results = ask({"queries": queries})["results"]
        for pin, result in zip(part, results, strict=True):
            ids = [vulnerability["id"] for vulnerability in (result or {}).get("vulns", [])]
            if ids:
                vulnerable[pin] = ids
    return vulnerable


def ask_osv(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Ask the public record; OSError if it cannot be reached."""
    request = urllib.request.Request(
        OSV_URL, json.dumps(body).encode(), {"Content-Type": "application/json", "User-Agent": "klamm-audit"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:  # noqa: S310 - a constant https address
        answer: Mapping[str, Any] = json.load(response)
    return answer


def main(path: str, ask: Ask = ask_osv) -> int:
    """Print what is known of the pins in a file; returns the exit code."""
    with open(path, encoding="utf-8") as file:
        pins = parse_pins(file)
    try:
        vulnerable = find_vulnerabilities(pins, ask)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        print(f"audit: {OSV_URL} cannot be reached ({reason}); nothing was checked", file=sys.stderr)
        return 2
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        # Not JSON, or JSON of another form: each step of reading it has its own error.
        print(
            f"audit: the answer of {OSV_URL} was not understood ({error!r}); nothing was checked",
            file=sys.stderr,
        )
        return 2
    for (name, version), ids in vulnerable.items():
        print(f"{name} {version}: {', '.join(ids)} (https://osv.dev/vulnerability/{ids[0]})")
    print(f"audit: {len(pins)} dependencies checked, {len(vulnerable)} with known vulnerabilities")
    return 1 if vulnerable else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "constraints.txt"))
