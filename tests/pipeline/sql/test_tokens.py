"""Text cut into tokens: nothing is lost, places are right, and quotes and comments hide what they hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.pipeline.sql.core.problems import ParseError
from klamm.pipeline.sql.core.tokens import NAME, NUMBER, SIGN, STRING, WORD, tokenize


def kinds(text):
    return [(token.kind, token.value) for token in tokenize(text)]


def test_words_names_strings_numbers_and_signs():
    assert kinds("SELECT `my ``col`, 'it''s', \"x\" || 1.5e3, a<=>b") == [
        (WORD, "SELECT"),
        (NAME, "my `col"),
        (SIGN, ","),
        (STRING, "it's"),
        (SIGN, ","),
        (STRING, "x"),
        (SIGN, "||"),
        (NUMBER, "1.5e3"),
        (SIGN, ","),
        (WORD, "a"),
        (SIGN, "<=>"),
        (WORD, "b"),
    ]


def test_escapes_are_resolved_except_in_raw_strings():
    assert kinds(r"'a\'b\n\\' r'a\n'") == [(STRING, "a'b\n\\"), (STRING, r"a\n")]


def test_comments_are_skipped_and_may_be_nested():
    assert kinds("a -- ; 'b\n/* c /* d */ ; */ e") == [(WORD, "a"), (WORD, "e")]


def test_what_quotes_hold_is_no_sign():
    assert [token.text for token in tokenize("';' `;` \";\"") if token.matches(";")] == []


@pytest.mark.parametrize(
    ("text", "offset", "word"), [("a 'b", 2, "string"), ("a /* b /* */", 2, "comment"), ("ab `c", 3, "name")]
)
def test_what_does_not_end_is_refused_where_it_begins(text, offset, word):
    with pytest.raises(ParseError) as refused:
        tokenize(text)
    assert refused.value.problem.offset == offset
    assert word in refused.value.problem.message


@given(st.text(alphabet="ab'\"`-/*;\n \\1.(", max_size=40))
def test_places_cut_the_text_into_what_was_written(text):
    try:
        tokens = tokenize(text)
    except ParseError:
        return
    for token in tokens:
        assert text[token.start : token.end] == token.text
    ends = [0, *(token.end for token in tokens)]
    assert all(before <= token.start for before, token in zip(ends, tokens, strict=False))
