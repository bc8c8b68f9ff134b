"""Principals as text."""

import pytest

from klamm.security.core.principal import ANONYMOUS, Principal, parse_principal


def test_a_principal_is_parsed_from_its_text():
    assert parse_principal("User:CN=carol,O=Acme") == Principal("User", "CN=carol,O=Acme")
    assert parse_principal(str(ANONYMOUS)) == ANONYMOUS


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:"])
def test_text_without_type_or_name_is_refused(text):
    with pytest.raises(ValueError, match="User:alice"):
        parse_principal(text)
