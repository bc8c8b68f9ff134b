"""Settings of SASL, Kerberos and delegation tokens."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, list_of

SASL: Final = (
    ConfigKey(
        "connections.max.reauth.ms",
        ConfigType.LONG,
        0,
        "Time after which a logged-in client must log in again; 0 never asks.",
    ),
    ConfigKey(
        "sasl.server.max.receive.size", ConfigType.INT, 524_288, "Largest message accepted while a client logs in."
    ),
    ConfigKey(
        "sasl.mechanism.inter.broker.protocol",
        ConfigType.STRING,
        "GSSAPI",
        "SASL mechanism used between brokers.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.enabled.mechanisms",
        ConfigType.LIST,
        ("GSSAPI",),
        "SASL mechanisms clients may use.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.server.callback.handler.class", ConfigType.CLASS, None, "Class that checks what a client shows to log in."
    ),
    ConfigKey(
        "sasl.kerberos.principal.to.local.rules",
        ConfigType.LIST,
        ("DEFAULT",),
        "How a Kerberos name becomes a user name.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.jaas.config",
        ConfigType.PASSWORD,
        None,
        "Login modules and their options.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.client.callback.handler.class",
        ConfigType.CLASS,
        None,
        "Class that answers questions when the broker logs in elsewhere.",
    ),
    ConfigKey("sasl.login.class", ConfigType.CLASS, None, "Class that performs the broker's own login."),
    ConfigKey(
        "sasl.login.callback.handler.class", ConfigType.CLASS, None, "Class that supplies the broker's own login data."
    ),
    ConfigKey(
        "sasl.kerberos.service.name",
        ConfigType.STRING,
        None,
        "Kerberos name the brokers run as.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.kerberos.kinit.cmd",
        ConfigType.STRING,
        "/usr/bin/kinit",
        "Path of the kinit program.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.kerberos.ticket.renew.window.factor",
        ConfigType.DOUBLE,
        0.8,
        "Share of a ticket's life after which it is renewed.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.kerberos.ticket.renew.jitter",
        ConfigType.DOUBLE,
        0.05,
        "Random share added to that time.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.kerberos.min.time.before.relogin",
        ConfigType.LONG,
        60_000,
        "Shortest time between two Kerberos logins.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.window.factor",
        ConfigType.DOUBLE,
        0.8,
        "Share of a credential's life after which it is renewed.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.window.jitter",
        ConfigType.DOUBLE,
        0.05,
        "Random share added to that time.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.min.period.seconds",
        ConfigType.SHORT,
        60,
        "Shortest time between two renewals.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.buffer.seconds",
        ConfigType.SHORT,
        300,
        "Time before the end of a credential by which it must be renewed.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.connect.timeout.ms",
        ConfigType.INT,
        None,
        "How long connecting to the identity provider may take.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.login.read.timeout.ms",
        ConfigType.INT,
        None,
        "How long reading from the identity provider may take.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.login.retry.backoff.max.ms",
        ConfigType.LONG,
        10_000,
        "Longest pause between two login tries.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.login.retry.backoff.ms",
        ConfigType.LONG,
        100,
        "First pause between two login tries.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "Key delegation tokens are signed with; empty turns tokens off.",
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        ConfigType.LONG,
        604_800_000,
        "Life a token has at most, however often it is renewed.",
        rule=at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        ConfigType.LONG,
        86_400_000,
        "Life a token has until it is renewed.",
        rule=at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        ConfigType.LONG,
        3_600_000,
        "Pause between two looks for tokens that ended.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
)
