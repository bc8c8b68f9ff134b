"""The guides whose pipelines start Spark several times are typed in the order a reader types them."""

import pytest

from harness.guide_pages import LONG, type_guide


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", LONG)
def test_a_reader_types_the_guide(name, tmp_path, monkeypatch):
    type_guide(name, tmp_path, monkeypatch)
