"""Settings of SASL, Kerberos and delegation tokens."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import at_least, list_of

SASL: Final = (
    # KIP-368.
    ConfigKey(
        "connections.max.reauth.ms",
        ConfigType.LONG,
        0,
        "Time after which an authenticated client must authenticate again; 0 disables it.",
        served=True,
    ),
    ConfigKey(
        "sasl.server.max.receive.size",
        ConfigType.INT,
        524_288,
        "Largest message accepted during authentication.",
        served=True,
    ),
    ConfigKey(
        "sasl.mechanism.inter.broker.protocol",
        ConfigType.STRING,
        "GSSAPI",
        "SASL mechanism used between brokers.",
        update_mode=UpdateMode.PER_BROKER,
        served=True,
    ),
    ConfigKey(
        "sasl.enabled.mechanisms",
        ConfigType.LIST,
        ("GSSAPI",),
        "SASL mechanisms clients may use.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
        served=True,
    ),
    # KIP-86.
    ConfigKey(
        "sasl.server.callback.handler.class",
        ConfigType.CLASS,
        None,
        "Class that verifies the credentials of clients.",
        served=True,
    ),
    ConfigKey(
        "sasl.kerberos.principal.to.local.rules",
        ConfigType.LIST,
        ("DEFAULT",),
        "Rules that map a Kerberos principal to a user name.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    # A password in Kafka's definition too, since it contains credentials.
    ConfigKey(
        "sasl.jaas.config",
        ConfigType.PASSWORD,
        None,
        "JAAS login modules and their options.",
        update_mode=UpdateMode.PER_BROKER,
        served=True,
    ),
    ConfigKey(
        "sasl.client.callback.handler.class",
        ConfigType.CLASS,
        None,
        "Class that supplies credentials when the broker connects as a client.",
    ),
    ConfigKey("sasl.login.class", ConfigType.CLASS, None, "Class that performs the broker's own login."),
    ConfigKey(
        "sasl.login.callback.handler.class",
        ConfigType.CLASS,
        None,
        "Class that supplies the credentials of the broker's own login.",
    ),
    ConfigKey(
        "sasl.kerberos.service.name",
        ConfigType.STRING,
        None,
        "Kerberos principal that the brokers run as.",
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
        "Part of a ticket's lifetime after which it is renewed.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.kerberos.ticket.renew.jitter",
        ConfigType.DOUBLE,
        0.05,
        "Random part added to the renewal time of a ticket.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.kerberos.min.time.before.relogin",
        ConfigType.LONG,
        60_000,
        "Shortest time between two Kerberos logins.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    # The four refresh settings are KIP-255 (OAUTHBEARER); Kerberos tickets have their own above.
    ConfigKey(
        "sasl.login.refresh.window.factor",
        ConfigType.DOUBLE,
        0.8,
        "Part of a credential's lifetime after which it is refreshed.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.window.jitter",
        ConfigType.DOUBLE,
        0.05,
        "Random part added to the refresh time of a credential.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.min.period.seconds",
        ConfigType.SHORT,
        60,
        "Shortest time between two refreshes.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "sasl.login.refresh.buffer.seconds",
        ConfigType.SHORT,
        300,
        "Time before the expiry of a credential by which it must be refreshed.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    # KIP-768, as the read timeout and the two retry settings.
    ConfigKey(
        "sasl.login.connect.timeout.ms",
        ConfigType.INT,
        None,
        "Timeout for connecting to the identity provider.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.login.read.timeout.ms",
        ConfigType.INT,
        None,
        "Timeout for reading from the identity provider.",
        importance=Importance.LOW,
        served=True,
    ),
    ConfigKey(
        "sasl.login.retry.backoff.max.ms",
        ConfigType.LONG,
        10_000,
        "Longest wait between two login attempts.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "sasl.login.retry.backoff.ms",
        ConfigType.LONG,
        100,
        "First wait between two login attempts.",
        importance=Importance.LOW,
    ),
    # KIP-48. Must be the same on all brokers, or tokens hold on one only.
    ConfigKey(
        "delegation.token.secret.key",
        ConfigType.PASSWORD,
        None,
        "Key that delegation tokens are signed with; empty disables tokens.",
    ),
    ConfigKey(
        "delegation.token.max.lifetime.ms",
        ConfigType.LONG,
        604_800_000,
        "Longest lifetime of a token, renewals included.",
        rule=at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.time.ms",
        ConfigType.LONG,
        86_400_000,
        "Lifetime of a token until it is renewed.",
        rule=at_least(1),
    ),
    ConfigKey(
        "delegation.token.expiry.check.interval.ms",
        ConfigType.LONG,
        3_600_000,
        "Interval between checks for expired tokens.",
        rule=at_least(1),
        importance=Importance.LOW,
    ),
)
