"""The cluster of a command: from `-b`, `--ctx`, the environment, the context in use, or this machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from klamm.cli import context_file
from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.foreign_protocols import remember_protocol

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, its client settings, and whether its changes need a confirmation by name."""

    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)
    context: str | None = None
    protected: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S
    bounds_waits: bool = False
    """Whether --timeout was given: it then bounds the waits of producers and consumers too."""

    def cluster(self) -> BlockingCluster:
        """A connection for admin requests; the first one of a context stores the cluster id."""
        from klamm.client.blocking_cluster import BlockingCluster

        connected = BlockingCluster(self.bootstrap, self.timeout_s, self._taken_by("admin"))
        if self.context is not None:
            context_file.store_cluster_id(self.context, self.bootstrap, connected)
        return connected

    def resolve_protection(self) -> Target:
        """This target, protected if any protected context is the same cluster under another address."""
        # No request unless it matters: most people have no protected context.
        if not self.bootstrap or not context_file.load().has_protected():
            return self
        with self.cluster() as cluster:
            if self.context is not None:  # the cluster may have been created anew under the same address
                context_file.store_cluster_id(self.context, self.bootstrap, cluster, again=True)
            name = None if self.protected else context_file.find_protecting(cluster)
        return self if name is None else dataclasses.replace(self, context=name, protected=True)

    def client(self, role: str, **more: object) -> dict[str, Any]:
        """Settings for a "producer" or "consumer", by Kafka's names (dots as underscores in `more`)."""
        named = {name.replace("_", "."): value for name, value in more.items() if value is not None}
        # Later ones win: what the user wrote with -X is the last word.
        return {"bootstrap.servers": self.bootstrap, **self._timeouts(role), **named, **self._taken_by(role)}

    def _timeouts(self, role: str) -> dict[str, str]:
        if not self.bounds_waits:
            return {}
        wait_ms = str(max(round(self.timeout_s * 1000), 1))
        if role == "producer":
            # A record is delivered or failed in that time: its requests may not take longer, nor does it linger.
            names = ("max.block.ms", "delivery.timeout.ms", "request.timeout.ms")
            return {**dict.fromkeys(names, wait_ms), "linger.ms": "0"}
        return {"default.api.timeout.ms": wait_ms} if role == "consumer" else {}

    def _taken_by(self, role: str) -> dict[str, str]:
        if not self.settings:
            return {}
        from klamm.cli.client_settings import taken_by

        return taken_by(role, self.settings)


@refuses
def resolve(
    bootstrap: str | None, context: str | None, pairs: tuple[str, ...], timeout_s: float | None, file: str | None = None
) -> Target:
    """The target: the command line wins over the environment, that over the context in use."""
    contexts = context_file.load()
    settings = {**_from_file(file), **parse_pairs(pairs)}
    if bootstrap is None and context is None:
        # An empty variable counts as unset, as `KLAMM_BOOTSTRAP= klamm ...` is written to clear it.
        bootstrap = os.environ.get("KLAMM_BOOTSTRAP") or None
        context = None if bootstrap else os.environ.get("KLAMM_CONTEXT") or contexts.current
    if bootstrap is not None and context is not None:
        raise click.UsageError("-b and --ctx exclude each other; write one of them")
    if context is not None:
        named_context = contexts.get(context)
        # Settings of the command line win over those of the context.
        address, settings, is_protected = (
            named_context.bootstrap,
            {**named_context.settings, **settings},
            named_context.protected,
        )
    else:
        address = bootstrap or DEFAULT_BOOTSTRAP
        # An address of a protected context is protected too.
        context = contexts.find_protected(address)
        is_protected = context is not None
    parse_addresses(address)
    remember_protocol(settings.get("security.protocol", ""))
    wait_s = DEFAULT_TIMEOUT_S if timeout_s is None else timeout_s
    return Target(address, settings, context, is_protected, wait_s, timeout_s is not None)


def parse_addresses(bootstrap: str) -> list[tuple[str, int]]:
    """HOST:PORT,... as pairs; a mistake is one of the command line."""
    addresses = []
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        # isdecimal accepts digits of other scripts, which int() would take as well.
        if not host or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise click.UsageError(f"{address.strip()!r} is no address; write HOST:PORT")
        addresses.append((host.strip("[]"), int(port)))
    return addresses


def _from_file(file: str | None) -> dict[str, str]:
    if file is None:
        return {}
    from klamm.cli.client_settings import from_java, read_properties

    return from_java(None, read_properties(file))


def parse_pairs(pairs: tuple[str, ...]) -> dict[str, str]:
    """KEY=VALUE pairs of `-X`."""
    settings = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"-X {pair}: write KEY=VALUE")
        settings[name] = value
    return settings


def cluster_options(command: F) -> F:
    """Give a command `-b`, `--ctx`, `-X`, `--command-config` and `--timeout`; it is called with `target`."""
    import functools

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        written = ("bootstrap", "context", "client_settings", "timeout_s", "settings_file")
        target = resolve(*(kwargs.pop(name) for name in written))
        return command(*args, target=target, **kwargs)

    # click lists options in the reverse order of their decorators.
    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _timeout(_: click.Context, __: click.Parameter, value: str | None) -> float | None:
    from klamm.model.units import parse_duration_ms

    if value is None:
        return None
    try:
        wait_ms = parse_duration_ms(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if wait_ms <= 0:
        raise click.BadParameter(f"{value!r} leaves no time for a response; write a longer one, such as 5s")
    return wait_ms / 1000


def complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts that begin so."""
    try:
        return sorted(name for name in context_file.load().contexts if name.startswith(incomplete))
    # A broken contexts file must not break the Tab key; the command itself reports it.
    except CommandRefusal:
        return []


_OPTIONS = (
    click.option(
        "-b",
        "--bootstrap-server",
        "bootstrap",
        metavar="HOST:PORT,...",
        help=f"Brokers to begin with.  [default: $KLAMM_BOOTSTRAP, the context in use, or {DEFAULT_BOOTSTRAP}]",
    ),
    click.option(
        "--ctx", "context", metavar="NAME", shell_complete=complete_context, help="A context, see `klamm ctx`."
    ),
    click.option("-X", "client_settings", multiple=True, metavar="KEY=VALUE", help="A client setting by Kafka's name."),
    click.option("--command-config", "settings_file", metavar="FILE", help="Client settings from a properties file."),
    click.option(
        "--timeout", "timeout_s", metavar="TIME", callback=_timeout, help="Longest wait for a response.  [default: 15s]"
    ),
)
