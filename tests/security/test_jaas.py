"""JAAS lines as they stand in Kafka's files."""

import pickle

import pytest

from klamm.model.errors import ConfigError
from klamm.model.properties import parse_properties
from klamm.security.core.jaas import parse_jaas
from klamm.security.core.secret import Secret


def options(line):
    return {name: secret.reveal() for name, secret in parse_jaas(line).options.items()}


def test_a_line_of_kafkas_documentation():
    text = (
        "listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule"
        ' required \\\n    username="admin" \\\n    password="admin-secret" \\\n    user_alice="alice-secret";\n'
    )
    [entry] = parse_properties(text)
    module = parse_jaas(entry.value)
    assert module.name == "org.apache.kafka.common.security.plain.PlainLoginModule"
    assert module.class_name == "PlainLoginModule"
    assert options(entry.value) == {"username": "admin", "password": "admin-secret", "user_alice": "alice-secret"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("M required;", {}),
        ("M REQUIRED a=b;", {"a": "b"}),
        ("M optional a='single quotes' b=\"semi;colon = equals\";", {"a": "single quotes", "b": "semi;colon = equals"}),
        (
            r'M required a="quo\"te" b="back\\slash" c="tab\t" d="\101";',
            {"a": 'quo"te', "b": "back\\slash", "c": "tab\t", "d": "A"},
        ),
        ("M required /* comment */ a = 1 // to the end\n b=c ;", {"a": "1", "b": "c"}),
        ('M required password="" ;', {"password": ""}),
    ],
)
def test_options(line, expected):
    assert options(line) == expected


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("", "names no login module"),
        ("  // nothing\n", "names no login module"),
        ("M", "must be followed by one of required"),
        ("M username=x;", "must be followed by one of required"),
        ('M required username="x"', "must end with a semicolon"),
        ("M required username;", "'username' has no value"),
        ("M required username=;", "'username' has no value"),
        ('M required username="x', "not closed"),
        ("M required; N required;", "more than one login module"),
    ],
)
def test_errors_say_what_is_missing(line, text):
    with pytest.raises(ConfigError, match=text):
        parse_jaas(line)


def test_secrets_are_hidden():
    module = parse_jaas('M required password="hunter2";')
    assert "hunter2" not in repr(module)
    assert f"{module.option('password')}" == "[hidden]"
    assert module.option("none") is None
    with pytest.raises(TypeError):
        pickle.dumps(Secret("hunter2"))
    assert Secret("a") == Secret("a") != Secret("b")
