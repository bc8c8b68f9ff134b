"""The klamm command that does what a page shows, for scripts and for people who learn them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_PLACEHOLDERS: Final = (
    ({"sasl.username", "sasl.jaas.config"}, (("sasl.username", "USER"), ("sasl.password", "PASSWORD"))),
    (
        {"sasl.oauthbearer.token.endpoint.url"},
        (
            ("sasl.oauthbearer.method", "oidc"),
            ("sasl.oauthbearer.token.endpoint.url", "TOKEN_URL"),
            ("sasl.oauthbearer.client.id", "CLIENT_ID"),
            ("sasl.oauthbearer.client.secret", "CLIENT_SECRET"),
        ),
    ),
    (
        {"ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates"},
        (("ssl.ca.location", "CA.pem"),),
    ),
    (
        {"ssl.certificate.location", "ssl.keystore.location", "ssl.keystore.certificate.chain"},
        (("ssl.certificate.location", "CERTIFICATE.pem"), ("ssl.key.location", "KEY.pem")),
    ),
    ({"ssl.key.password"}, (("ssl.key.password", "PASSWORD"),)),
)


@dataclass(frozen=True, slots=True)
class CommandTarget:
    """How a command names the cluster: a context, or brokers."""

    context: str | None
    bootstrap: str
    security: tuple[tuple[str, str], ...] = ()
    """Settings that a client needs to log in, with placeholders for what is not for others to see."""

    def arguments(self) -> list[str]:
        """Return the options; a context has its settings with it."""
        return ["--ctx", self.context] if self.context else ["-b", self.bootstrap, *self.settings()]

    def settings(self) -> list[str]:
        """Return the security settings as options, which klamm and kcat have alike."""
        return [word for name, value in self.security for word in ("-X", f"{name}={value}")]


def describe_security(settings: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return what a client needs to log in as the console does.

    Names of settings are those that librdkafka has too. Users, secrets and files of the console are placeholders: a
    visitor has others.
    """
    names = {name for name, value in settings.items() if value not in (None, "")}
    shown: list[tuple[str, str]] = [
        (name, str(settings[name]))
        for name in ("security.protocol", "sasl.mechanism", "sasl.mechanisms", "ssl.endpoint.identification.algorithm")
        if name in names
    ]
    # Both spellings are the same setting.
    shown = [("sasl.mechanism" if name == "sasl.mechanisms" else name, value) for name, value in shown]
    for present, placeholders in _PLACEHOLDERS:
        if names & present:
            shown += placeholders
    return tuple(dict(shown).items())


def make_command(target: CommandTarget, *words: str) -> str:
    """Return a command, quoted for a shell."""
    return shlex.join(["klamm", *words, *target.arguments()])


def consume_command(
    target: CommandTarget,
    topic: str,
    *,
    partition: int | None = None,
    start: str = "",
    last: int | None = None,
    count: int | None = None,
    where: str = "",
    key: str = "",
    committed: bool = False,
) -> str:
    """Return `klamm consume` for a search of the messages page."""
    words = ["consume", topic]
    if partition is not None:
        words += ["-p", str(partition)]
    if start:
        words += ["--from", start]
    if last is not None:
        words += ["--last", str(last)]
    if count is not None:
        words += ["-n", str(count)]
    if key:
        words += ["--key", key]
    if where:
        words += ["--where", where]
    if committed:
        words.append("--read-committed")
    return make_command(target, *words)


def kcat_command(target: CommandTarget, topic: str, partition: int, offset: int) -> str:
    """Return the kcat command that prints one record."""
    words = ["kcat", "-b", target.bootstrap, *target.settings()]
    return shlex.join([*words, "-t", topic, "-p", str(partition), "-o", str(offset), "-c", "1", "-C"])


def create_command(
    target: CommandTarget, name: str, partitions: int | None, replicas: int | None, configs: Mapping[str, str]
) -> str:
    """Return `klamm topic create`."""
    words = ["topic", "create", name]
    if partitions is not None:
        words += ["-p", str(partitions)]
    if replicas is not None:
        words += ["-r", str(replicas)]
    for setting, value in configs.items():
        words += ["-c", f"{setting}={value}"]
    return make_command(target, *words)


def group_command(target: CommandTarget, group: str) -> str:
    """Return `klamm group show`."""
    return make_command(target, "group", "show", group)


def seek_command(target: CommandTarget, group: str, position: str, topics: Sequence[str]) -> str:
    """Return `klamm group seek`."""
    words = ["group", "seek", group, "--to", position]
    for topic in topics:
        words += ["--topic", topic]
    return make_command(target, *words)
