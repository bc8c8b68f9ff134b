"""Settings of TLS."""

from typing import Final

from klamm.model.config import ConfigKey, ConfigType, Importance, UpdateMode
from klamm.model.config_rules import list_of, one_of

TLS: Final = (
    ConfigKey(
        "ssl.client.auth",
        ConfigType.STRING,
        "none",
        "Whether clients must, may or need not present a certificate.",
        rule=one_of("required", "requested", "none"),
        update_mode=UpdateMode.PER_BROKER,
    ),
    # KIP-371.
    ConfigKey(
        "ssl.principal.mapping.rules",
        ConfigType.STRING,
        "DEFAULT",
        "Rules that map the name in a certificate to a user name.",
        importance=Importance.LOW,
    ),
    # KIP-978.
    ConfigKey(
        "ssl.allow.dn.changes",
        ConfigType.BOOLEAN,
        False,
        "Allow a reloaded certificate with another subject.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "ssl.allow.san.changes",
        ConfigType.BOOLEAN,
        False,
        "Allow a reloaded certificate with other host names.",
        importance=Importance.LOW,
    ),
    ConfigKey(
        "ssl.protocol",
        ConfigType.STRING,
        "TLSv1.3",
        "TLS version of the SSL context.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.provider",
        ConfigType.STRING,
        None,
        "Security provider of the TLS implementation.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.enabled.protocols",
        ConfigType.LIST,
        (
            "TLSv1.2",
            "TLSv1.3",
        ),
        "Enabled TLS versions.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.type",
        ConfigType.STRING,
        "JKS",
        "File format of the key store.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.location",
        ConfigType.STRING,
        None,
        "Key store: file with the node's certificate and key.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.password",
        ConfigType.PASSWORD,
        None,
        "Password of the key store.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.key.password", ConfigType.PASSWORD, None, "Password of the private key.", update_mode=UpdateMode.PER_BROKER
    ),
    # KIP-651: PEM text in the setting itself, for platforms that pass secrets as values and not as files.
    ConfigKey(
        "ssl.keystore.key",
        ConfigType.PASSWORD,
        None,
        "The private key as PEM text.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keystore.certificate.chain",
        ConfigType.PASSWORD,
        None,
        "The certificate chain as PEM text.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.type",
        ConfigType.STRING,
        "JKS",
        "File format of the trust store.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.location",
        ConfigType.STRING,
        None,
        "Trust store: file with the trusted certificates.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.password",
        ConfigType.PASSWORD,
        None,
        "Password of the trust store.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.truststore.certificates",
        ConfigType.PASSWORD,
        None,
        "The trusted certificates as PEM text.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.keymanager.algorithm",
        ConfigType.STRING,
        "SunX509",
        "Algorithm of the key manager.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.trustmanager.algorithm",
        ConfigType.STRING,
        "PKIX",
        "Algorithm of the trust manager.",
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.endpoint.identification.algorithm",
        ConfigType.STRING,
        "https",
        "Algorithm of host name verification; empty disables it.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.secure.random.implementation",
        ConfigType.STRING,
        None,
        "Random number generator of TLS.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
    ),
    ConfigKey(
        "ssl.cipher.suites",
        ConfigType.LIST,
        (),
        "Enabled cipher suites; empty uses those of the library.",
        rule=list_of(),
        update_mode=UpdateMode.PER_BROKER,
    ),
    # KIP-519.
    ConfigKey(
        "ssl.engine.factory.class",
        ConfigType.CLASS,
        None,
        "Class that creates TLS engines.",
        importance=Importance.LOW,
        update_mode=UpdateMode.PER_BROKER,
    ),
    # KIP-492.
    ConfigKey(
        "security.providers",
        ConfigType.STRING,
        None,
        "Classes that add security algorithms.",
        importance=Importance.LOW,
    ),
    # KIP-189.
    ConfigKey(
        "principal.builder.class",
        ConfigType.CLASS,
        "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
        "Class that derives the principal of a connection.",
        update_mode=UpdateMode.PER_BROKER,
    ),
)
