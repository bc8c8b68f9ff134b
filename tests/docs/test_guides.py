"""Every block of every guide is typed in the order a reader types it, in an empty folder.

Single blocks were tested before, each with what it needed prepared by its test: a guide whose blocks collide, whose
commands do not exist or whose snippets lack an import passed.
"""

import re
from pathlib import Path

import pytest

from harness.guide import Reader, parse_blocks
from harness.guide_pages import GUIDES, LONG, type_guide

TESTS = Path(__file__).parents[1]
ABOUT_PIPELINES = (
    *(name for name in GUIDES if name.startswith("pipeline")),
    *("change-data", "coming-from-ksqldb", "lake", "postgres", "spark", "tables"),
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in GUIDES]
)
def test_a_reader_types_the_guide(name, tmp_path, monkeypatch):
    type_guide(name, tmp_path, monkeypatch)


def test_the_long_guides_are_guides():
    assert set(LONG) <= set(GUIDES)


def prose_of(page):
    """The lines of a page outside of its blocks."""
    inside = False
    for line in page.splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            yield line


def test_commands_about_pipelines_are_typed():
    """Those in the middle of a text, or in an indented paragraph, were typed by no test."""
    blocks = [block for path in GUIDES.values() for block in parse_blocks(path.read_text())]
    typed = [command for block in blocks if block.language in ("console", "bash") for command, _ in block.commands]
    tested = "".join(path.read_text() for path in TESTS.rglob("*.py"))
    for name in ABOUT_PIPELINES:
        prose = list(prose_of(GUIDES[name].read_text()))
        assert not [line for line in prose if re.match(r" {4,}(?:\$ )?(?:klamm|psql|curl|spark-class) ", line)], name
        for code in re.findall(r"`([^`]+)`", " ".join(prose)):
            if not code.startswith(("klamm ", "run ", "--")):
                continue
            for option in re.findall(r"--[a-z-]+", code):
                used = any(re.search(rf"{option}\b", command) for command in typed)
                assert used or f'"{option}"' in tested, f"{name}: {code} is typed by no test"


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
