"""The guides of the documentation, and what a reader of each needs beside an empty folder."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.guide import Reader, parse_blocks
from pipeline.postgres.postgres_server import running_server
from pipeline.small_registry import small_registry

ROOT = Path(__file__).parents[2]
GUIDES = {path.stem: path for path in [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]}
LONG = ("lake", "pipeline-bad-data", "pipeline-changes", "pipeline-operations", "pipelines", "postgres", "spark")
"""Guides that start Spark several times: `make long` types them, because they take minutes."""
REGISTRY = {"spark", "pipeline-sources"}


def type_guide(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Type every block of a guide in its order; AssertionError for one that fails or prints something else."""
    blocks = parse_blocks(GUIDES[name].read_text())
    with (
        small_registry() if name in REGISTRY else nullcontext() as registry,
        running_server() if name == "postgres" else nullcontext() as postgres,
    ):
        ports = {"8081": int(registry.url.rpartition(":")[2])} if registry else {}
        if postgres is not None:
            ports["5432"] = postgres.port
            # psql is among the server's programs.
            monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{postgres.programs}")
        Reader(folder, ports, in_checkout=name == "simulation").read(blocks)
