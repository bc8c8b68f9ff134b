"""What services with HTTP share on the command line: address, TLS, login, access log."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from klamm.cli.command_errors import CommandRefusal
from klamm.cli.node_runner import LEVELS, set_log_level, stop_at_eof
from klamm.model.errors import ConfigError

if TYPE_CHECKING:
    import socket
    import ssl

    from klamm.http.login import HttpLogins, WatchedAuthFile
    from klamm.security.tls import TlsSettings

F = TypeVar("F", bound=Callable[..., Any])

_LOOPBACK: Final = ("127.", "::1", "localhost")
_OTHER_PORT: Final = "choose another with --port (0 takes a free one)"
_KEYS_REFRESH_MS: Final = 3_600_000
_KEYS_RETRY_MS: Final = 100
_KEYS_RETRY_MAX_MS: Final = 10_000


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The options as they were written."""

    host: str
    port: int
    allow_insecure_bind: bool
    certfile: str | None
    keyfile: str | None
    cafile: str | None
    authfile: str | None
    jwks_url: str | None
    issuer: str | None
    audience: tuple[str, ...]
    subject_claim: str
    log_level: str
    access_log: bool
    until_eof: bool = False
    listen_fd: int | None = None
    truststore: str | None = None
    client_auth: str = "none"
    mapping_rules: str = ""
    server_names: tuple[str, ...] = ()

    @property
    def has_login(self) -> bool:
        """Whether requests have to log in."""
        return self.authfile is not None or self.jwks_url is not None or self.takes_certificates

    @property
    def takes_certificates(self) -> bool:
        """Whether a client may log in with a certificate."""
        return self.client_auth != "none"

    @property
    def scheme(self) -> str:
        """Of the service's URL."""
        return "http" if self.certfile is None else "https"

    def prepare(self, name: str, *, delegated: bool = False) -> None:
        """Choose the log level, and refuse what cannot work or opens the service by accident.

        With `delegated` the cluster checks the logins of requests.
        """
        level = "info" if self.access_log and self.log_level in ("warning", "error") else self.log_level
        set_log_level(level)
        if self.until_eof:
            stop_at_eof()
        if (self.keyfile or self.cafile) and self.certfile is None:
            raise click.UsageError("--server-tls-keyfile and --server-tls-cafile need --server-tls-certfile")
        if self.takes_certificates and (self.certfile is None or self.truststore is None):
            raise click.UsageError("--ssl-client-auth needs --server-tls-certfile and --ssl-truststore-location")
        if not self.takes_certificates and (self.truststore or self.mapping_rules):
            raise click.UsageError(
                "--ssl-truststore-location and --ssl-principal-mapping-rules are for client certificates;"
                " add --ssl-client-auth required (or requested, beside other logins)"
            )
        if self.jwks_url is None and (self.issuer or self.audience):
            raise click.UsageError(
                "an issuer or audience is checked in tokens; add --sasl-oauthbearer-jwks-endpoint-url"
            )
        if self.host.startswith(_LOOPBACK) or self.has_login or delegated or self.allow_insecure_bind:
            return
        raise CommandRefusal(
            f"{self.host}:{self.port} opens the {name} to other machines, and it has no authentication;"
            " add --authfile, --sasl-oauthbearer-jwks-endpoint-url or --ssl-client-auth, or --allow-insecure-bind if"
            " that is meant"
        )

    def names_of(self, url: str) -> frozenset[str]:
        """Return the names under which a service is reached: those of --server-name, and that of its own URL."""
        from urllib.parse import urlsplit

        own = urlsplit(url).hostname
        return frozenset(name.lower() for name in (*self.server_names, own) if name)

    def advertised_host(self) -> str:
        """Return where other machines reach the service, unless an option says it: --host, or this machine's name."""
        if self.host not in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
            return self.host
        import socket

        return socket.getfqdn()

    def bind(self) -> socket.socket:
        """Return the listening socket: that of the parent process, where it has passed one on."""
        import socket

        from klamm.http.binding import bind

        try:
            if self.listen_fd is not None:
                return socket.socket(fileno=self.listen_fd)
            return bind(self.host, self.port)
        except ConfigError as error:
            from klamm.cli.port_owner import name_holder

            raise CommandRefusal(name_holder(str(error), _OTHER_PORT)) from None

    def server_tls(self) -> ssl.SSLContext | None:
        """Return the context of the listener; None for HTTP."""
        if self.certfile is None:
            return None
        from klamm.security.tls import server_context

        return server_context(
            dataclasses.replace(
                self._own_certificate(self.certfile), truststore_location=self.truststore, client_auth=self.client_auth
            )
        )

    def _own_certificate(self, certfile: str) -> TlsSettings:
        from klamm.security.core.secret import Secret
        from klamm.security.tls import TlsSettings

        if self.keyfile is None:
            return TlsSettings(keystore_location=certfile)
        key, chain = (Secret(_read(path)) for path in (self.keyfile, certfile))
        return TlsSettings(keystore_key=key, keystore_chain=chain)

    def client_tls(self) -> ssl.SSLContext | None:
        """Return the context of calls to other instances of the service; None for the authorities of the system."""
        if self.cafile is None:
            return None
        from klamm.security.tls import TlsSettings, client_context

        # The other instances have the same options, and take a certificate from this one.
        presents = self.takes_certificates and self.certfile is not None
        settings = self._own_certificate(self.certfile or "") if presents else TlsSettings()
        return client_context(dataclasses.replace(settings, truststore_location=self.cafile))

    def open_authfile(self) -> WatchedAuthFile | None:
        """Return the file of users and permissions."""
        if self.authfile is None:
            return None
        from klamm.http.login import WatchedAuthFile

        return WatchedAuthFile(self.authfile)

    def make_login(self, file: WatchedAuthFile | None, realm: str) -> HttpLogins | None:
        """Return the logins; None when requests need none."""
        if not self.has_login:
            return None
        from klamm.http.login import BasicLogin, BearerLogin, HttpLogins, LoginScheme

        schemes: list[LoginScheme] = []
        if file is not None:
            schemes.append(BasicLogin(file, realm))
        certificates = None
        if self.takes_certificates:
            from klamm.http.login import CertificateLogin
            from klamm.security.core.principal_mapping import parse_mapping_rules

            certificates = CertificateLogin(parse_mapping_rules(self.mapping_rules))
        if self.jwks_url is None:
            return HttpLogins(schemes, certificates=certificates)
        from klamm.model.clock import SystemClock
        from klamm.security.core.bearer_claims import ClaimRules
        from klamm.security.http import HttpSettings
        from klamm.security.key_store import KeySource, KeyStore

        source = KeySource(self.jwks_url, HttpSettings(), _KEYS_REFRESH_MS, _KEYS_RETRY_MS, _KEYS_RETRY_MAX_MS)
        key_store = KeyStore(source, SystemClock())
        rules = ClaimRules(subject_claim=self.subject_claim, audiences=self.audience, issuer=self.issuer)
        schemes.append(BearerLogin(key_store, rules, realm))
        return HttpLogins(schemes, key_store, certificates)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandRefusal(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is no PEM file'}"
        ) from None


def http_options(port: int) -> Callable[[F], F]:
    """Give a command the options of an HTTP service; it is called with `http`."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            http = HttpOptions(**{name: kwargs.pop(name) for name in HttpOptions.__dataclass_fields__})
            return command(*args, http=http, **kwargs)

        # click lists options in the reverse order of their decorators.
        for option in reversed(_options(port)):
            wrapped = option(wrapped)
        return wrapped  # type: ignore[return-value]

    return decorate


def _options(port: int) -> tuple[Callable[[Any], Any], ...]:
    """Names are Karapace's and Kafka's, with hyphens."""
    file = click.Path(exists=True, dir_okay=False)
    return (
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
        click.option(
            "--port", type=click.IntRange(0, 65535), default=port, show_default=True, help="Port; 0 takes a free one."
        ),
        click.option(
            "--server-name",
            "server_names",
            multiple=True,
            metavar="NAME",
            help="Further name in the URL of the service, as of a proxy on this machine.",
        ),
        click.option(
            "--allow-insecure-bind", is_flag=True, help="Let --host be an address other machines reach, without login."
        ),
        click.option(
            "--server-tls-certfile", "certfile", type=file, metavar="FILE", help="Certificate chain (PEM): serve HTTPS."
        ),
        click.option(
            "--server-tls-keyfile", "keyfile", type=file, metavar="FILE", help="Private key, unless it is in that file."
        ),
        click.option(
            "--server-tls-cafile", "cafile", type=file, metavar="FILE", help="Authority of the other instances."
        ),
        click.option(
            "--authfile", type=file, metavar="FILE", help="Users and permissions; requests then need a password."
        ),
        click.option(
            "--sasl-oauthbearer-jwks-endpoint-url",
            "jwks_url",
            metavar="URL",
            help="Keys of an identity provider; requests then need a token (or a password).",
        ),
        click.option("--sasl-oauthbearer-expected-issuer", "issuer", metavar="URL", help="Issuer of the tokens."),
        click.option(
            "--sasl-oauthbearer-expected-audience",
            "audience",
            multiple=True,
            metavar="NAME",
            help="Audience of the tokens; one of several.",
        ),
        click.option(
            "--sasl-oauthbearer-sub-claim-name",
            "subject_claim",
            default="sub",
            show_default=True,
            metavar="NAME",
            help="Claim with the name of the principal.",
        ),
        click.option(
            "--ssl-client-auth",
            "client_auth",
            type=click.Choice(("none", "requested", "required")),
            default="none",
            show_default=True,
            help="Client certificates as logins.",
        ),
        click.option(
            "--ssl-truststore-location",
            "truststore",
            type=file,
            metavar="FILE",
            help="Authorities (PEM) of client certificates.",
        ),
        click.option(
            "--ssl-principal-mapping-rules",
            "mapping_rules",
            default="",
            metavar="RULES",
            help="Names of principals by the subjects of certificates, as in Kafka.  [default: the whole subject]",
        ),
        click.option(
            "--log-level", type=click.Choice(LEVELS), default="warning", show_default=True, help="Lines to log."
        ),
        click.option("--access-log", is_flag=True, help="Log one line per request; the same as --log-level info."),
        click.option(
            "--until-eof", is_flag=True, help="Stop when standard input ends, as it does when the parent process ends."
        ),
        click.option("--listen-fd", type=int, hidden=True, help="A socket that the parent process has bound."),
    )
