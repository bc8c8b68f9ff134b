"""Named clusters a person works with: where they are, how to get in, and whether to think twice there.

Kept in `klamm/contexts.json` under $XDG_CONFIG_HOME (~/.config), readable by its owner alone:

    {"current": "dev", "contexts": {"prod": {"bootstrap": "a:9092,b:9092", "protected": true, "settings": {},
                                             "cluster_id": "l6t1Q_H-TtyNbcQtxA6dGA"}}}

The id of the cluster is kept with its first answer, so that a mark holds whatever address leads there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal, explain

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

ASK_S: Final = 2.0
"""How long a context is waited for that only has to say who it is."""
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

    def is_protected(self, bootstrap: str) -> str | None:
        """The name of a protected context that leads to the same brokers: an address does not get around the mark."""
        wanted = {address.strip() for address in bootstrap.split(",")}
        for name, context in self.contexts.items():
            if context.protected and wanted & {address.strip() for address in context.bootstrap.split(",")}:
                return name
        return None

    def has_protected(self) -> bool:
        """Whether any context is protected."""
        return any(context.protected for context in self.contexts.values())


def learn(name: str, bootstrap: str, cluster: BlockingCluster, *, again: bool = False) -> None:
    """Keep which cluster a context is, once it is asked something."""
    held = load()
    context = held.contexts.get(name)
    if context is not None and (again or context.cluster_id is None) and context.bootstrap == bootstrap:
        _keep_id(held, name, cluster_id(cluster))


def _keep_id(held: Contexts, name: str, cluster_id: str | None) -> None:
    if cluster_id is not None and held.contexts[name].cluster_id != cluster_id:
        held.contexts[name] = replace(held.contexts[name], cluster_id=cluster_id)
        with contextlib.suppress(OSError):  # it is a help for later, not what was asked for
            save(held)


def guardian(cluster: BlockingCluster) -> str | None:
    """The name of a protected context that is this cluster.

    One without a known cluster id is asked now, with a short timeout: the same cluster would answer.
    """
    here = cluster_id(cluster)
    held = load()
    for name, context in held.contexts.items():
        if context.protected and context.cluster_id is None:
            _keep_id(held, name, ask_id(context))
    for name, context in held.contexts.items():
        if context.protected and here is not None and context.cluster_id == here:
            return name
    return None


def ask_id(context: Context) -> str | None:
    """Which cluster a context is; None when it does not answer soon."""
    from klamm.cli.client_settings import ADMIN, taken_by
    from klamm.client.blocking_cluster import BlockingCluster
    from klamm.model.errors import ConfigError

    try:
        with BlockingCluster(context.bootstrap, ASK_S, taken_by(ADMIN, context.settings)) as cluster:
            return cluster_id(cluster)
    except (OSError, ConfigError):
        return None


def cluster_id(cluster: BlockingCluster) -> str | None:
    """The id a cluster gives itself; None when it does not tell."""
    from klamm.model.errors import KlammError, ProtocolError

    try:
        return cluster.cluster_id
    except (OSError, KlammError, ProtocolError):
        return None


def path() -> str:
    """Where contexts are kept."""
    explicit = os.environ.get("KLAMM_CONTEXTS")
    if explicit:
        return explicit
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "klamm", "contexts.json")


def load() -> Contexts:
    """What is kept; nothing when there is no file yet."""
    try:
        with open(path(), encoding="utf-8") as file:
            text = file.read()
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
        return Contexts(kept.get("current"), made)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CommandRefusal(f"the contexts cannot be read: {explain(error)}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CommandRefusal(
            f"{path()} cannot be read as contexts; correct it, or remove it and add them again"
        ) from None


def save(contexts: Contexts) -> None:
    """Keep them: a whole new file in place of the old one."""
    target = path()
    os.makedirs(os.path.dirname(target) or ".", mode=0o700, exist_ok=True)
    kept = {"current": contexts.current, "contexts": {name: asdict(c) for name, c in sorted(contexts.contexts.items())}}
    beside = f"{target}.{os.getpid()}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(kept, file, indent=2)
        file.write("\n")
    os.replace(beside, target)


def check_name(name: str) -> str:
    """A name for a context; refuses one that could be anything else."""
    if not _NAME.fullmatch(name):
        raise CommandRefusal(
            f"{name!r} is no name for a context: write letters, digits, '.', '_' and '-'", code=exit_codes.USAGE
        )
    return name


def shown_settings(settings: dict[str, str]) -> dict[str, str]:
    """Settings with their secrets hidden."""
    return {
        name: "[hidden]" if any(word in name.lower() for word in SECRETS) else value for name, value in settings.items()
    }
