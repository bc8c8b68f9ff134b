"""Stores the results of each program on each broker, and generates the table of docs/compatibility.md.

`results.json` holds one row per program and broker: its version, the day, and each check by the name of its test. A row
of another version is dropped when the program is run again, and so are checks whose test is gone.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = HERE.parent / "docs" / "compatibility.md"

INTRODUCTION = """\
# Compatibility

<!-- Written by `make ecosystem` from ecosystem/results.json; `python -m ecosystem --table` writes it again. -->

Third-party programs, unmodified, against a cluster of three Klamm nodes. Every result is verified by content: the
records that the program wrote are read with `read_committed` and compared with a recomputation. The same tests run
against three nodes of Apache Kafka as a control (`python -m ecosystem --broker kafka`). `ecosystem/README.md` describes
the tests; `compat/README.md` describes the tests of single requests, tools and clients.

"""

NOT_PUBLISHED = {
    "Karapace": "Schema registry and REST proxy that keep their state in topics",
    "kminion": "Exporter of a cluster's metrics; `test_command_line_tools.py` runs it where it is on the PATH",
}
"""Programs that are not on PyPI, the Go module proxy, Maven Central, npm or Debian."""


@dataclass
class Check:
    """One test of a program: what was done, and how it ended."""

    what: str
    result: str
    date: str


@dataclass
class Row:
    """One program on one broker."""

    program: str
    broker: str
    version: str
    checks: dict[str, Check] = field(default_factory=dict)


class Results:
    """The rows of the file, by program and broker."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {(row.program, row.broker): row for row in rows}

    @classmethod
    def load(cls, path: Path = RESULTS) -> "Results":
        if not path.exists():
            return cls([])
        return cls([_parse_row(entry) for entry in json.loads(path.read_text())])

    def save(self, path: Path = RESULTS) -> None:
        entries = [_format_row(self.rows[key]) for key in sorted(self.rows)]
        path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n")

    def record(self, program: str, broker: str, version: str, test: str, check: Check) -> None:
        """Put down how a test ended; results of another version of the program are dropped."""
        row = self.rows.get((program, broker))
        if row is None or row.version != version:
            row = self.rows[program, broker] = Row(program, broker, version)
        row.checks[test] = check

    def forget_all_but(self, tests: set[str]) -> None:
        """Drop the checks whose test does not exist any more."""
        for key, row in list(self.rows.items()):
            row.checks = {test: check for test, check in row.checks.items() if test in tests}
            if not row.checks:
                del self.rows[key]

    def page(self) -> str:
        """The whole of docs/compatibility.md."""
        lines = ["| Program | Version | What was done | Klamm | Apache Kafka | Date |", "|---|---|---|---|---|---|"]
        for program in sorted({program for program, _ in self.rows} | NOT_PUBLISHED.keys(), key=str.casefold):
            reason = "not run: no package on the public registries"
            gap = f"| {program} | none | {NOT_PUBLISHED.get(program)} | {reason} | {reason} | |"
            lines += self._program_lines(program) or [gap]
        return INTRODUCTION + "\n".join(lines) + "\n"

    def _program_lines(self, program: str) -> list[str]:
        rows = {broker: row for (name, broker), row in self.rows.items() if name == program}
        tests = sorted({test for row in rows.values() for test in row.checks})
        lines = []
        for test in tests:
            checks = {broker: row.checks[test] for broker, row in rows.items() if test in row.checks}
            subject = checks.get("klamm") or next(iter(checks.values()))
            version = rows["klamm" if "klamm" in checks else "kafka"].version
            ends = [checks[broker].result if broker in checks else "not run" for broker in ("klamm", "kafka")]
            lines.append(f"| {program} | {version} | {subject.what} | {ends[0]} | {ends[1]} | {subject.date} |")
        return lines


def write_page() -> None:
    """Write docs/compatibility.md from the kept results."""
    PAGE.write_text(Results.load().page())


def _parse_row(entry: dict[str, Any]) -> Row:
    checks = {test: Check(**check) for test, check in entry["checks"].items()}
    return Row(entry["program"], entry["broker"], entry["version"], checks)


def _format_row(row: Row) -> dict[str, Any]:
    checks = {test: vars(check) for test, check in sorted(row.checks.items())}
    return {"program": row.program, "broker": row.broker, "version": row.version, "checks": checks}
