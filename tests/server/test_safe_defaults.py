"""A node is not opened by mistake: open listeners, mistyped names, settings without effect, secrets in answers."""

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.errors import ConfigError
from klamm.server.boot.config import NodeConfig, embedded_properties, load_config, parse_config
from klamm.server.boot.config_checks import STANDARD_AUTHORIZER, refuse_open_listeners

OPEN = "listeners=PLAINTEXT://0.0.0.0:9092,CONTROLLER://127.0.0.1:0"
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="top-secret";'


def config_of(*overrides: str) -> NodeConfig:
    return parse_config(embedded_properties("/nowhere", 0), overrides)


def test_an_open_listener_is_refused_with_what_to_write():
    config = config_of(OPEN)
    with pytest.raises(ConfigError) as refusal:
        refuse_open_listeners(config)
    text = str(refusal.value)
    assert "listener PLAINTEXT://0.0.0.0:9092 opens the node to other machines" in text
    assert "write PLAINTEXT://127.0.0.1:9092" in text
    assert "klamm.insecure.listeners=PLAINTEXT" in text


def test_each_open_listener_is_named_by_itself():
    both = "listeners=PLAINTEXT://0.0.0.0:1,CONTROLLER://0.0.0.0:2"
    with pytest.raises(ConfigError, match=r"klamm\.insecure\.listeners=CONTROLLER,PLAINTEXT"):
        refuse_open_listeners(config_of(both, "klamm.insecure.listeners=plaintext"))
    config = config_of(both, "klamm.insecure.listeners=plaintext, CONTROLLER")
    refuse_open_listeners(config)
    assert sum("without authentication" in warning for warning in config.warnings) == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]"])
def test_loopback_listeners_need_no_permission(host):
    refuse_open_listeners(config_of(f"listeners=PLAINTEXT://{host}:0,CONTROLLER://127.0.0.1:0"))


def test_a_login_is_enough():
    refuse_open_listeners(
        config_of(
            "listeners=PLAINTEXT://127.0.0.1:1,CLIENTS://0.0.0.0:2,CONTROLLER://127.0.0.1:0",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listener.name.clients.sasl.enabled.mechanisms=PLAIN",
            f"listener.name.clients.plain.sasl.jaas.config={JAAS}",
        )
    )


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("klamm.insecure.listeners=PLANTEXT", "names PLANTEXT, which is not in listeners"),
        ("klamm.insecure.listener=PLAINTEXT", "did you mean klamm.insecure.listeners?"),
        ("super.user=User:admin", "did you mean super.users?"),
        ("allow.everyone.if.no.acl.fund=true", "did you mean allow.everyone.if.no.acl.found?"),
        ("authorizer.class.names=x", "did you mean authorizer.class.name?"),
        ("sasl.enabled.mechanism=PLAIN", "did you mean sasl.enabled.mechanisms?"),
        ("ssl.client.authentication=required", "did you mean ssl.client.auth?"),
        (
            "listener.name.plaintext.ssl.keystore.loaction=x",
            "did you mean listener.name.plaintext.ssl.keystore.location?",
        ),
        ("listener.name.plaintext.authorizer.class.name=x", "is a setting of the node, not of a listener"),
        ("listener.name.plaintext.super.users=User:a", "super.users is not a broker setting"),
        ("listeners.name.plaintext.ssl.client.auth=required", "is not a broker setting"),
    ],
)
def test_mistyped_security_settings_stop_the_start(override, text):
    with pytest.raises(ConfigError, match=text.replace("?", r"\?")):
        config_of(override)


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("super.users=User:admin", "super.users has no effect without authorizer.class.name"),
        ("sasl.kerberos.service.name=kafka", "sasl.kerberos.service.name: Klamm has no Kerberos"),
        ("ssl.provider=SunJSSE", "ssl.provider: these security settings have no"),
        ("sasl.enabled.mechanisms=PLAIN", "sasl.enabled.mechanisms has no effect: no listener"),
        ("ssl.keystore.location=node.pem", "ssl.keystore.location has no effect: no listener"),
    ],
)
def test_security_settings_without_effect_are_warned_of(override, text):
    assert any(text in warning for warning in config_of(override).warnings)


AUTHORIZER = f"authorizer.class.name={STANDARD_AUTHORIZER}"


@pytest.mark.parametrize(
    ("overrides", "is_warned_of"),
    [
        ([AUTHORIZER], True),
        ([AUTHORIZER, "super.users=User:ANONYMOUS"], False),
        ([AUTHORIZER, "allow.everyone.if.no.acl.found=true"], False),
        ([], False),
    ],
)
def test_an_authorizer_without_super_users_is_warned_of(overrides, is_warned_of):
    warnings = config_of(*overrides).warnings
    assert any("super.users is empty" in warning for warning in warnings) == is_warned_of


def test_client_certificates_that_no_listener_demands_are_warned_of():
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:{},CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms=SCRAM-SHA-512",
        "ssl.keystore.type=PEM",
        "ssl.keystore.location=node.pem",
        "ssl.client.auth=required",
    )
    [warning] = [
        text for text in config_of(*(text.format("SASL_SSL") for text in overrides)).warnings if "auth" in text
    ]
    assert "ssl.client.auth=required has no effect on SASL_SSL listeners" in warning
    assert "write listener.name.clients.ssl.client.auth=required" in warning
    assert not any("ssl.client" in text for text in config_of(*(text.format("SSL") for text in overrides)).warnings)


@pytest.mark.parametrize(
    ("mode", "line", "is_warned_of"),
    [(0o600, "ssl.key.password=x", False), (0o640, "ssl.key.password=x", True), (0o644, "num.partitions=1", False)],
)
def test_a_properties_file_with_passwords_that_others_can_read_is_warned_of(tmp_path, mode, line, is_warned_of):
    path = tmp_path / "server.properties"
    path.write_text(f"{embedded_properties(str(tmp_path), 0)}\n{line}\n")
    path.chmod(mode)
    assert any("has passwords and mode" in warning for warning in load_config(str(path)).warnings) == is_warned_of


def test_secrets_are_in_no_answer_error_or_text(tmp_path):
    jaas = "listener.name.clients.plain.sasl.jaas.config"
    overrides = (
        "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.clients.sasl.enabled.mechanisms=PLAIN",
        f"{jaas}={JAAS}",
        "ssl.key.password=top-secret",
        "ssl.keystore.password=top-secret",
        "zookeeper.secret=top-secret",
    )
    config = config_of(*overrides)
    assert "top-secret" not in repr(config)
    assert "top-secret" not in "".join((*config.warnings, *config.ignored))
    with NodeThread(tmp_path, *overrides) as node, Wire(node.port) as wire:
        requested = [{"resource_type": 4, "resource_name": "1", "configuration_keys": None}]
        [result] = wire.call("describe_configs", 4, resources=requested, include_synonyms=True).results
        assert "top-secret" not in repr(result)
        entries = {entry.name: entry for entry in result.configs}
        for name in (jaas, "ssl.key.password", "zookeeper.secret"):
            assert entries[name].is_sensitive
            assert entries[name].value is None
