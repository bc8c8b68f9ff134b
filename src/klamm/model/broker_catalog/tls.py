"""Settings of TLS."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import list_of, one_of

TLS: Final = (
    ConfigKey(
        "ssl.client.auth",
        ConfigType.STRING,
        "none",
        "Whether clients must, may or need not show a certificate.",
        rule=one_of("required", "requested", "none"),
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.principal.mapping.rules",
        ConfigType.STRING,
        "DEFAULT",
        "How the name in a certificate becomes a user name.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "ssl.allow.dn.changes",
        ConfigType.BOOLEAN,
        False,
        "Let a reloaded certificate carry another subject.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        ConfigType.BOOLEAN,
        False,
        "Let a reloaded certificate carry other host names.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "ssl.protocol",
        ConfigType.STRING,
        "TLSv1.3",
        "TLS version used where one must be named.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.provider",
        ConfigType.STRING,
        None,
        "Security provider the TLS code comes from.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        (
            "TLSv1.2",
            "TLSv1.3",
        ),
        "TLS versions that may be spoken.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.type",
        ConfigType.STRING,
        "JKS",
        "File format of the own certificate and key.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.location",
        ConfigType.STRING,
        None,
        "File with the own certificate and key.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.password", ConfigType.PASSWORD, None, "Password of that file.", update_mode=UpdateMode.PER_BROKER
    ),
    ConfigKey(
        "ssl.key.password", ConfigType.PASSWORD, None, "Password of the private key.", update_mode=UpdateMode.PER_BROKER
    ),
    ConfigKey(
        "ssl.keystore.key",
        ConfigType.PASSWORD,
        None,
        "The private key itself, as PEM text.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.certificate.chain",
        ConfigType.PASSWORD,
        None,
        "The own certificate chain itself, as PEM text.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.type",
        ConfigType.STRING,
        "JKS",
        "File format of the trusted certificates.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.location",
        ConfigType.STRING,
        None,
        "File with the trusted certificates.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.password",
        ConfigType.PASSWORD,
        None,
        "Password of that file.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.certificates",
        ConfigType.PASSWORD,
        None,
        "The trusted certificates themselves, as PEM text.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keymanager.algorithm",
        ConfigType.STRING,
        "SunX509",
        "Algorithm that picks the own key.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.trustmanager.algorithm",
        ConfigType.STRING,
        "PKIX",
        "Algorithm that checks a peer's certificate.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        ConfigType.STRING,
        "https",
        "How a peer's name is compared with its certificate; empty turns it off.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.secure.random.implementation",
        ConfigType.STRING,
        None,
        "Source of random numbers for TLS.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.cipher.suites",
        ConfigType.LIST,
        (),
        "Ciphers that may be used; empty leaves the choice to the library.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.engine.factory.class",
        ConfigType.CLASS,
        None,
        "Class that builds TLS engines.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "security.providers",
        ConfigType.STRING,
        None,
        "Classes that add security algorithms.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "principal.builder.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "Class that names the user behind a connection.",
        update_mode=UpdateMode.PER_BROKER,
    ),
)
