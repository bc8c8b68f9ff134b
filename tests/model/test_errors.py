"""Codes, names and retriability are Kafka's; the sentences are there for every code."""

from pathlib import Path

import pytest

from klamm.model.error_texts import ERROR_TEXTS
from klamm.model.errors import ErrorCode

GOLDEN = Path(__file__).parent / "golden" / "error_codes.txt"


def test_codes_are_kafkas():
    kafka = {}
    for line in GOLDEN.read_text().splitlines():
        if not line.startswith("#"):
            code, name, retriable = line.split()
            kafka[int(code)] = (name, retriable == "true")
    assert {code.value: (code.name, code.retriable) for code in ErrorCode} == kafka


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_every_code_has_its_sentence(code):
    assert code.text.endswith(".")
    assert len(code.text) < 110


def test_no_sentence_is_left_over_or_used_twice():
    assert set(ERROR_TEXTS) == {code.name for code in ErrorCode}
    assert len(set(ERROR_TEXTS.values())) == len(ERROR_TEXTS)
