"""The console's file, in TOML: users, roles, fields to mask, where changes are audited.

[users.anna]
password = "$argon2id$..."       # klamm console --hash-password prints it
roles = ["admin"]

[roles.support]
actions = ["view", "read"]
clusters = ["prod*"]
topics = ["orders*"]

[[masks]]
topics = ["orders"]
fields = ["card.number", "**.password"]
exempt = ["admin"]

[proxy]
header = "X-Forwarded-User"      # set by a reverse proxy that checks logins
from = ["127.0.0.1"]
roles = ["viewer"]

[oidc]
issuer = "https://login.example.com/realms/main"
client_id = "klamm-console"
client_secret_file = "/run/secrets/console"    # not for a public client
redirect_url = "https://console.example.com/login/oidc/callback"
roles_claim = "groups"
map = { kafka-admins = ["admin"], support = ["support"] }
roles = []                       # of all users of the provider

[audit]
topic = "klamm-console-audit"
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.console.core.roles import ADMIN_ROLE, BUILT_IN, Action, ConsoleRole, MaskRule, Visitor
from klamm.model.errors import ConfigError
from klamm.security.core.secret import Secret

_TABLES: Final = ("users", "roles", "masks", "proxy", "oidc", "audit", "hosts", "read_only")
_OIDC_KEYS: Final = frozenset(
    {
        *("issuer", "client_id", "client_secret", "client_secret_file", "redirect_url", "scopes", "title", "ca"),
        *("name_claim", "roles_claim", "map", "roles"),
    }
)
_LOOPBACK: Final = ("http://127.0.0.1", "http://localhost", "http://[::1]")


@dataclass(frozen=True, slots=True)
class LocalUser:
    """A user with a password."""

    name: str
    password_hash: str
    roles: tuple[ConsoleRole, ...]


@dataclass(frozen=True, slots=True)
class ProxyLogin:
    """A header that a reverse proxy sets after it has checked the login."""

    header: str
    peers: frozenset[str]
    roles: tuple[ConsoleRole, ...]
    """Of users that the file does not name."""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """A provider of OpenID Connect."""

    issuer: str
    client_id: str
    redirect_url: str
    """The address of this console's callback, as browsers and the provider name it."""
    client_secret: Secret | None = None
    scopes: tuple[str, ...] = ("openid", "profile")
    title: str = ""
    """On the login page."""
    ca: str | None = None
    """A PEM file with the authorities of the provider; None for those of the system."""
    name_claim: str = "preferred_username"
    roles_claim: str = "groups"
    roles_by_value: Mapping[str, tuple[ConsoleRole, ...]] = field(default_factory=dict)
    roles: tuple[ConsoleRole, ...] = ()
    """Of every user of the provider; those without any role are refused."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """All settings; without users, proxy and provider no login is needed."""

    users: Mapping[str, LocalUser] = field(default_factory=dict)
    masks: tuple[MaskRule, ...] = ()
    proxy: ProxyLogin | None = None
    audit_topic: str | None = None
    hosts: tuple[str, ...] = ()
    """Host names that requests may have beside those of the loopback interface."""
    read_only: bool = False
    oidc: OidcSettings | None = None

    @property
    def needs_login(self) -> bool:
        """Whether pages are for known users only."""
        return bool(self.users) or self.proxy is not None or self.oidc is not None

    def anonymous(self) -> Visitor:
        """The visitor of a console without logins."""
        return Visitor("local", (ADMIN_ROLE,), self.read_only)


def parse_settings(text: str) -> ConsoleSettings:
    """Parse the file; ConfigError says what is wrong in it."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the console's file is no TOML: {error}") from None
    for name in tables:
        if name not in _TABLES:
            raise ConfigError(f"the console's file has no table {name}; there are {', '.join(_TABLES)}")
    try:
        roles = {**BUILT_IN, **{name: _parse_role(name, entry) for name, entry in tables.get("roles", {}).items()}}
        users = {name: _parse_user(name, entry, roles) for name, entry in tables.get("users", {}).items()}
        return ConsoleSettings(
            users,
            tuple(_parse_mask(entry) for entry in tables.get("masks", ())),
            _parse_proxy(tables["proxy"], roles) if "proxy" in tables else None,
            tables.get("audit", {}).get("topic"),
            tuple(map(str, tables.get("hosts", ()))),
            bool(tables.get("read_only", False)),
            _parse_oidc(tables["oidc"], roles, has_proxy="proxy" in tables) if "oidc" in tables else None,
        )
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"the console's file has a value of the wrong kind: {error}") from None


def _parse_role(name: str, entry: Mapping[str, Any]) -> ConsoleRole:
    try:
        actions = frozenset(map(Action, entry.get("actions", ("view",))))
    except ValueError as error:
        names = ", ".join(action.value for action in Action)
        raise ConfigError(f"roles.{name}: {error}; actions are {names}") from None
    return ConsoleRole(name, actions, tuple(entry.get("clusters", ("*",))), tuple(entry.get("topics", ("*",))))


def _parse_user(name: str, entry: Mapping[str, Any], roles: Mapping[str, ConsoleRole]) -> LocalUser:
    password = str(entry.get("password", ""))
    if not password.startswith("$argon2"):
        raise ConfigError(f"users.{name}: password is no argon2 hash; `klamm console --hash-password` prints one")
    return LocalUser(name, password, _find_roles(f"users.{name}", entry.get("roles", ("viewer",)), roles))


def _parse_mask(entry: Mapping[str, Any]) -> MaskRule:
    topics, fields = tuple(entry.get("topics", ("*",))), tuple(entry.get("fields", ()))
    if not fields:
        raise ConfigError("masks: name at least one field")
    return MaskRule(topics, tuple(tuple(path.split(".")) for path in fields), frozenset(entry.get("exempt", ())))


def _parse_proxy(entry: Mapping[str, Any], roles: Mapping[str, ConsoleRole]) -> ProxyLogin:
    header = str(entry.get("header", "")).lower()
    peers = frozenset(map(str, entry.get("from", ())))
    # Without the peers, any client could send the header itself.
    if not header or not peers:
        raise ConfigError("proxy: name the header, and in `from` the addresses of the proxies that set it")
    return ProxyLogin(header, peers, _find_roles("proxy", entry.get("roles", ("viewer",)), roles))


def _parse_oidc(entry: Mapping[str, Any], roles: Mapping[str, ConsoleRole], *, has_proxy: bool) -> OidcSettings:
    if has_proxy:
        # A session would end with the next request: the proxy's header decides on each of them.
        raise ConfigError("oidc: a console has either a proxy that checks logins or a provider")
    unknown = sorted(entry.keys() - _OIDC_KEYS)
    if unknown:
        raise ConfigError(f"oidc: there is no {unknown[0]}; there are {', '.join(sorted(_OIDC_KEYS))}")
    for name in ("issuer", "client_id", "redirect_url"):
        if not isinstance(entry.get(name), str) or not entry[name]:
            raise ConfigError(f"oidc: name the {name}")
    for name in ("issuer", "redirect_url"):
        # Codes and tokens are in these requests; without TLS only on this machine, for tests.
        if not entry[name].startswith(("https://", *_LOOPBACK)):
            raise ConfigError(f"oidc: {name} has to be an https address")
    if not entry["redirect_url"].endswith("/login/oidc/callback"):
        raise ConfigError("oidc: redirect_url ends with /login/oidc/callback")
    scopes = tuple(map(str, entry.get("scopes", ("openid", "profile"))))
    if "openid" not in scopes:
        raise ConfigError("oidc: scopes need openid")
    by_value = {
        str(value): _find_roles(f"oidc.map.{value}", names, roles) for value, names in entry.get("map", {}).items()
    }
    default = _find_roles("oidc", entry.get("roles", ()), roles)
    if not by_value and not default:
        raise ConfigError("oidc: no user has a role; name roles of groups in map, or roles of all users")
    return OidcSettings(
        entry["issuer"],
        entry["client_id"],
        entry["redirect_url"],
        _read_secret(entry),
        scopes,
        str(entry.get("title", "")),
        entry.get("ca"),
        str(entry.get("name_claim", "preferred_username")),
        str(entry.get("roles_claim", "groups")),
        by_value,
        default,
    )


def _read_secret(entry: Mapping[str, Any]) -> Secret | None:
    path = entry.get("client_secret_file")
    if path is None:
        return Secret(str(entry["client_secret"])) if "client_secret" in entry else None
    try:
        with open(path, encoding="utf-8") as file:
            return Secret(file.read().strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"oidc: client_secret_file cannot be read: {error}") from None


def _find_roles(where: str, names: Iterable[str], roles: Mapping[str, ConsoleRole]) -> tuple[ConsoleRole, ...]:
    missing = [name for name in names if name not in roles]
    if missing:
        raise ConfigError(f"{where}: there is no role {missing[0]}; there are {', '.join(sorted(roles))}")
    return tuple(roles[name] for name in names)
