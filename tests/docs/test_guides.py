"""Every block of every guide is typed in the order a reader types it, in an empty folder.

Single blocks were tested before, each with what it needed prepared by its test: a guide whose blocks collide, whose
commands do not exist or whose snippets lack an import passed.
"""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.guide import Reader, parse_blocks
from pipeline.postgres.postgres_server import running_server
from pipeline.small_registry import small_registry

ROOT = Path(__file__).parents[2]
GUIDES = {path.stem: path for path in [ROOT / "README.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]}
REGISTRY = {"spark", "pipeline-sources"}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", list(GUIDES))
def test_a_reader_types_the_guide(name, tmp_path, monkeypatch):
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
        Reader(tmp_path, ports, in_checkout=name == "simulation").read(blocks)


def test_a_block_that_fails_is_noticed(tmp_path):
    page = '```python\nprint("one")\n```\n```text title="Output"\ntwo\n```\n'
    with pytest.raises(AssertionError, match="not printed: two"):
        Reader(tmp_path).read(parse_blocks(page))
    with pytest.raises(AssertionError, match="no-such-command"):
        Reader(tmp_path).read(parse_blocks("```console\n$ no-such-command --help\n```\n"))
    with pytest.raises(AssertionError, match="has no language"):
        Reader(tmp_path).read(parse_blocks("```\nklamm up\n```\n"))
    with pytest.raises(AssertionError, match="typed by no reader"):
        Reader(tmp_path).read(parse_blocks("```text\nklamm topic ls\n```\n"))
