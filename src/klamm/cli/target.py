"""Which cluster a command speaks to: `-b`, `--ctx`, the environment, the context in use, or this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from klamm.cli import contexts as kept
from klamm.cli.refusal import Refusal, refuses

if TYPE_CHECKING:
    from klamm.client.wire import Cluster

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9092"
DEFAULT_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, how to get in, and whether changes there need a second thought."""

    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict)
    context: str | None = None
    protected: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S

    def cluster(self) -> Cluster:
        """A connection for a few questions."""
        from klamm.client.wire import Cluster

        return Cluster(self.bootstrap, self.timeout_s, self._taken_by("admin"))

    def client(self, role: str, **more: object) -> dict[str, Any]:
        """Settings for a "producer" or "consumer", by Kafka's names (dots as underscores in `more`)."""
        named = {name.replace("_", "."): value for name, value in more.items() if value is not None}
        return {"bootstrap.servers": self.bootstrap, **named, **self._taken_by(role)}

    def _taken_by(self, role: str) -> dict[str, str]:
        if not self.settings:
            return {}
        from klamm.cli.client_settings import taken_by

        return taken_by(role, self.settings)


@refuses
def resolve(
    bootstrap: str | None, context: str | None, pairs: tuple[str, ...], timeout_s: float, file: str | None = None
) -> Target:
    """The target of what was written: the command line wins over the environment, that over the context in use."""
    contexts = kept.load()
    settings = {**_from_file(file), **parse_pairs(pairs)}
    if bootstrap is None and context is None:
        bootstrap = os.environ.get("KLAMM_BOOTSTRAP") or None
        context = None if bootstrap else os.environ.get("KLAMM_CONTEXT") or contexts.current
    if bootstrap is not None and context is not None:
        raise click.UsageError("-b and --ctx exclude each other; write one of them")
    if context is not None:
        found = contexts.get(context)
        return Target(found.bootstrap, {**found.settings, **settings}, context, found.protected, timeout_s)
    address = bootstrap or DEFAULT_BOOTSTRAP
    guarded = contexts.is_protected(address)
    return Target(address, settings, guarded, guarded is not None, timeout_s)


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

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped  # type: ignore[return-value]


def _timeout(_: click.Context, __: click.Parameter, value: str | None) -> float:
    from klamm.cli.units import parse_duration_ms

    if value is None:
        return DEFAULT_TIMEOUT_S
    try:
        return parse_duration_ms(value) / 1000
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def complete_context(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Names of contexts that begin so."""
    try:
        return sorted(name for name in kept.load().contexts if name.startswith(incomplete))
    except Refusal:
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
        "--timeout", "timeout_s", metavar="TIME", callback=_timeout, help="Longest wait for an answer.  [default: 15s]"
    ),
)
