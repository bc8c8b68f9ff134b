"""The table of programs equals the last recorded results."""

from ecosystem.results import PAGE, Results


def test_the_page_tells_the_kept_results():
    assert PAGE.read_text() == Results.load().page(), "python -m ecosystem --table"
