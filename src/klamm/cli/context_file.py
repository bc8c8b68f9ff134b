"""Named clusters: their addresses, client settings, and whether changes need a confirmation by name.

Kept in `klamm/contexts.json` under $XDG_CONFIG_HOME (~/.config), readable by its owner alone:

    {"current": "dev", "contexts": {"prod": {"bootstrap": "a:9092,b:9092", "protected": true, "settings": {},
                                             "cluster_id": "l6t1Q_H-TtyNbcQtxA6dGA"}}}

The id of the cluster is stored at the first connection, so that the protection applies to every address of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal, explain
from klamm.cli.output import note

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

CLUSTER_ID_S: Final = 2.0
"""How long to wait for the cluster id of a context that is not the target of the command."""
SECRETS: Final = ("password", "jaas", "secret", "token", "private")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster; `settings` are client settings by Kafka's names."""

    bootstrap: str
    protected: bool = False
    settings: dict[str, str] = field(default_factory=dict)
    cluster_id: str | None = None
    """The id of its cluster; None until the first connection."""


@dataclass(slots=True)
class Contexts:
    """All contexts, and the one in use."""

    current: str | None = None
    contexts: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        """The context of that name; refuses one that does not exist."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise CommandRefusal(
                f"there is no context {name!r} (there is: {known}); `klamm ctx add {name} -b HOST:PORT` makes it",
                code=exit_codes.NOT_FOUND,
            )
        return self.contexts[name]

    def find_protected(self, bootstrap: str) -> str | None:
        """The name of a protected context with one of these addresses, so that -b does not bypass the protection."""
        wanted = {address.strip() for address in bootstrap.split(",")}
        for name, context in self.contexts.items():
            if context.protected and wanted & {address.strip() for address in context.bootstrap.split(",")}:
                return name
        return None

    def has_protected(self) -> bool:
        """Whether any context is protected."""
        return any(context.protected for context in self.contexts.values())


def store_cluster_id(name: str, bootstrap: str, cluster: BlockingCluster, *, again: bool = False) -> None:
    """Store the cluster id of a context, once it is connected."""
    held = load()
    context = held.contexts.get(name)
    # A context that was changed since this command began is another cluster.
    if context is not None and (again or context.cluster_id is None) and context.bootstrap == bootstrap:
        _keep_id(held, name, cluster_id(cluster))


def _keep_id(held: Contexts, name: str, cluster_id: str | None) -> None:
    if cluster_id is not None and held.contexts[name].cluster_id != cluster_id:
        held.contexts[name] = replace(held.contexts[name], cluster_id=cluster_id)
        with contextlib.suppress(OSError):  # a read-only home must not fail the command
            save(held)


def find_protecting(cluster: BlockingCluster) -> str | None:
    """The name of a protected context that is this cluster.

    A context without a stored cluster id is connected to now, with a short timeout.
    """
    here = cluster_id(cluster)
    held = load()
    for name, context in held.contexts.items():
        # If it is the same cluster it answers as fast as the target did; an unreachable one cannot be it.
        if context.protected and context.cluster_id is None:
            _keep_id(held, name, query_id(context))
    for name, context in held.contexts.items():
        if context.protected and here is not None and context.cluster_id == here:
            return name
    return None


def query_id(context: Context) -> str | None:
    """The cluster id of a context; None when no broker answers in time."""
    from klamm.cli.client_settings import ADMIN, taken_by
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.model.errors import ConfigError

    try:
        with BlockingCluster(context.bootstrap, CLUSTER_ID_S, taken_by(ADMIN, context.settings)) as cluster:
            return cluster_id(cluster)
    except (OSError, ConfigError):
        return None


def cluster_id(cluster: BlockingCluster) -> str | None:
    """The id of a cluster; None when it cannot be read."""
    from klamm.model.errors import KlammError, ProtocolError

    try:
        return cluster.cluster_id
    except (OSError, KlammError, ProtocolError):
        return None


def path() -> str:
    """The path of the file."""
    explicit = os.environ.get("KLAMM_CONTEXTS")
    if explicit:
        return explicit
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "klamm", "contexts.json")


def load() -> Contexts:
    """The stored contexts; none when there is no file."""
    try:
        with open(path(), encoding="utf-8") as file:
            text = file.read()
            mode = os.fstat(file.fileno()).st_mode
        # An empty file is what an interrupted editor or `touch` leaves; it means no contexts.
        kept: dict[str, Any] = json.loads(text) if text.strip() else {}
        made = {
            name: Context(
                bootstrap=str(fields["bootstrap"]),
                protected=bool(fields.get("protected", False)),
                settings={str(key): str(value) for key, value in dict(fields.get("settings", {})).items()},
                cluster_id=None if fields.get("cluster_id") is None else str(fields["cluster_id"]),
            )
            for name, fields in dict(kept.get("contexts", {})).items()
        }
        _check_mode(mode, made)
        return Contexts(kept.get("current"), made)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandRefusal(f"the contexts cannot be read: {explain(error)}") from None
    # People edit this file; whatever they break ends as one sentence with its path.
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandRefusal(
            f"{path()} cannot be read as contexts; correct it, or remove it and add them again"
        ) from None


@functools.cache
def _warn_of_mode(file: str) -> None:
    # Once in a command, however often it reads the file.
    note(f"{file} has passwords and other users can read it; run: chmod 600 {file}")


def _check_mode(mode: int, contexts: dict[str, Context]) -> None:
    """Warn of a file with secrets that other users of the machine can read."""
    if mode & 0o077 and any(_is_secret(name) for context in contexts.values() for name in context.settings):
        _warn_of_mode(path())


def save(contexts: Contexts) -> None:
    """Store the contexts: a new file replaces the old one."""
    target = path()
    os.makedirs(os.path.dirname(target) or ".", mode=0o700, exist_ok=True)
    kept = {"current": contexts.current, "contexts": {name: asdict(c) for name, c in sorted(contexts.contexts.items())}}
    # Written beside and renamed: two commands at once must not interleave, and a full disk must not truncate.
    beside = f"{target}.{os.getpid()}"
    # Settings may contain passwords, so others may not read the file from its creation on.
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(kept, file, indent=2)
        file.write("\n")
    os.replace(beside, target)


def check_name(name: str) -> str:
    """A valid name for a context; CommandRefusal otherwise."""
    if not _NAME.fullmatch(name):
        raise CommandRefusal(
            f"{name!r} is no name for a context: write letters, digits, '.', '_' and '-'", code=exit_codes.USAGE
        )
    return name


def shown_settings(settings: dict[str, str]) -> dict[str, str]:
    """Settings with their secrets hidden."""
    return {name: "[hidden]" if _is_secret(name) else value for name, value in settings.items()}


def _is_secret(name: str) -> bool:
    from klamm.client.config import ADMIN_CONFIGS

    if name in ADMIN_CONFIGS:
        return ADMIN_CONFIGS.key(name).sensitive
    # Of a newer version, or of no client at all: better hidden for nothing.
    return any(word in name.lower() for word in SECRETS)


def with_absolute_paths(settings: dict[str, str]) -> dict[str, str]:
    """Settings whose files are found from any folder: a context is used from all of them."""
    return {
        name: os.path.abspath(os.path.expanduser(value)) if value and name.endswith(".location") else value
        for name, value in settings.items()
    }
