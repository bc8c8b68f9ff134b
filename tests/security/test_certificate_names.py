"""Names of client certificates: RFC 2253 text, and the rules that make users of it."""

import pytest

from klamm.model.errors import ConfigError
from klamm.security.core.distinguished_name import subject_name
from klamm.security.core.principal_mapping import NoMatchingRule, map_subject, parse_mapping_rules


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82]) + size.to_bytes(2)
    return bytes([tag]) + length + content


def name(*parts: list[tuple[bytes, int, bytes]]) -> bytes:
    return der(
        0x30,
        b"".join(
            der(0x31, b"".join(der(0x30, der(6, oid) + der(tag, value)) for oid, tag, value in part)) for part in parts
        ),
    )


def certificate(subject: bytes, *, version: bool = True) -> bytes:
    fields = der(0xA0, der(2, b"\2")) if version else b""
    fields += der(2, b"\1") + der(0x30, b"") + name([(CN, 0x0C, b"issuer")]) + der(0x30, b"") + subject + der(0x30, b"")
    return der(0x30, der(0x30, fields) + der(0x30, b"") + der(3, b"\0"))


CN, C, ORG, EMAIL = b"\x55\4\3", b"\x55\4\6", b"\x55\4\x0a", b"\x2a\x86\x48\x86\xf7\x0d\1\x09\1"
UID = b"\x09\x92\x26\x89\x93\xf2\x2c\x64\1\1"


@pytest.mark.parametrize("version", [True, False])
def test_attributes_come_in_reverse(version):
    subject = name([(C, 0x13, b"CH")], [(ORG, 0x0C, b"Acme")], [(CN, 0x0C, b"carol")])
    assert subject_name(certificate(subject, version=version)) == "CN=carol,O=Acme,C=CH"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Acme, Inc.", r"Acme\, Inc."),
        ('a+b"c\\d<e>f;g', r"a\+b\"c\\d\<e\>f\;g"),
        ("#start", r"\#start"),
        ("a=b#c", r"a\=b\#c"),  # as javax.security.auth.x500.X500Principal.getName
        (" both ends ", r"\ both ends\ "),
        ("Zürich", "Zürich"),
        ("x" * 300, "x" * 300),
    ],
)
def test_special_characters_are_escaped(value, text):
    assert subject_name(certificate(name([(CN, 0x0C, value.encode())]))) == f"CN={text}"


def test_attributes_without_a_name_are_numbers():
    subject = name([(EMAIL, 0x16, b"a@b")], [(CN, 0x1E, "ü".encode("utf-16-be")), (UID, 0x13, b"7")])
    assert subject_name(certificate(subject)) == "CN=ü+UID=7,1.2.840.113549.1.9.1=#1603614062"


@pytest.mark.parametrize("size", range(1, 40, 3))
def test_certificates_that_are_cut_are_refused(size):
    with pytest.raises(ValueError, match="readable subject"):
        subject_name(certificate(name([(CN, 0x0C, b"carol")]))[:size])


@pytest.mark.parametrize(
    ("rules", "subject", "user"),
    [
        ("DEFAULT", "CN=carol,O=Acme", "CN=carol,O=Acme"),
        ("", "CN=carol", "CN=carol"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=kafka,OU=ServiceUsers,O=Acme", "kafka"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "CN=Carol,OU=Sales,C=CH", "carol@sales"),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L,DEFAULT", "CN=Carol", "CN=Carol"),
        ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "O=x,cn=carol.d", "CAROL.D"),
        ("RULE:CN=(\\w+)/$12/ , DEFAULT", "CN=a", "a2"),
        ("RULE:CN=(.*)\\/x/$1\\/y/", "CN=a/x", "a/y"),
        ("RULE:CN=(\\w+),C=(\\w{2,3})/$2-$1/", "CN=a,C=CH", "CH-a"),
    ],
)
def test_rules(rules, subject, user):
    assert map_subject(parse_mapping_rules(rules), subject) == user


def test_no_rule_is_a_refusal():
    rules = parse_mapping_rules("RULE:CN=(a.*)/$1/")
    with pytest.raises(NoMatchingRule, match="CN=bob"):
        map_subject(rules, "CN=bob")
    # A part of the name is not enough.
    with pytest.raises(NoMatchingRule):
        map_subject(rules, "O=x,CN=alice")


@pytest.mark.parametrize("rules", ["RULE:CN=(.*)", "rule:a/b/", "RULE:(/x/", "DEFAULT;DEFAULT"])
def test_invalid_rules_stop_the_start(rules):
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        parse_mapping_rules(rules)


def test_long_subjects_are_refused_where_patterns_would_take_seconds():
    """Breaks when a certificate of a client can hold up the loop; a name is kept whole, however long, without rules."""
    subject = "CN=" + "a,OU=b,O=c" * 400
    rules = parse_mapping_rules("RULE:^CN=(.*?),OU=(.*?),O=(.*?),C=(.*?)$/$1@$2/L,DEFAULT")
    with pytest.raises(NoMatchingRule, match="characters"):
        map_subject(rules, subject)
    assert map_subject(parse_mapping_rules("DEFAULT"), subject) == subject
