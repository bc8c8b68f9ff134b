"""Every block of every guide is typed in the order a reader types it, in an empty folder.

Single blocks were tested before, each with what it needed prepared by its test: a guide whose blocks collide, whose
commands do not exist or whose snippets lack an import passed.
"""

import pytest

from harness.guide import Reader, parse_blocks
from harness.guide_pages import GUIDES, LONG, type_guide


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in GUIDES]
)
def test_a_reader_types_the_guide(name, tmp_path, monkeypatch):
    type_guide(name, tmp_path, monkeypatch)


def test_the_long_guides_are_guides():
    assert set(LONG) <= set(GUIDES)


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
