"""Named restore points of a pipeline: its identity and checkpoints, as they were between two batches.

A restore point is a folder `snapshots/<label>` of the pipeline's folder. `adoption.restore_queries` starts from one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.pipeline.checkpoint_folder import sync_folder
from klamm.pipeline.sql.checkpoint_files import last_batch
from klamm.pipeline.sql.core.graph import DEAD_LETTERS
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.status import IDENTITY, Home, committed_offsets

_SNAPSHOTS: Final = "snapshots"
_DESCRIPTION: Final = "snapshot.json"
_STORES: Final = shutil.ignore_patterns("*.sqlite*")
"""Rows of joined tables: changed in place, so they cannot be linked, and made again from their topics when missing."""
_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A restore point."""

    label: str
    path: str
    taken_ms: int
    identity: QueryIdentity
    batches: Mapping[str, int]
    """The newest batch that was done, by query; -1 for none."""
    positions: Mapping[str, Mapping[str, int]]
    """The offset up to which each query had read, by partition."""

    def checkpoint(self, query: str) -> str | None:
        """Return the folder of a query's checkpoint; None for a query that the restore point does not have."""
        if query not in self.batches:
            return None
        return os.path.join(self.path, _folder_of(self.identity, query))


def take_snapshot(home: Home, label: str | None, now_ms: int) -> Snapshot:
    """Copy identity and checkpoints; no query may run a batch meanwhile. ConfigError when the label exists."""
    label = label or datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    if not _LABEL.fullmatch(label):
        raise ConfigError(f"{label} is not a label: write letters, digits, dots, dashes and underscores")
    identity = home.identity()
    if identity is None:
        raise ConfigError(f"{home.path} has no checkpoints: the pipeline has not run")
    root = os.path.join(home.path, _SNAPSHOTS)
    path, part = os.path.join(root, label), os.path.join(root, f".{label}.part")
    if os.path.exists(path):
        raise ConfigError(f"there is a snapshot {label} already")
    shutil.rmtree(part, ignore_errors=True)
    os.makedirs(part)
    batches, positions = {}, {}
    for query in _queries(identity, home):
        source = os.path.join(home.path, _folder_of(identity, query))
        if os.path.isdir(source):
            target = os.path.join(part, _folder_of(identity, query))
            shutil.copytree(source, target, ignore=_STORES, copy_function=_link)
            batches[query] = last_batch(source, "commits")
            offsets = committed_offsets(source)
            positions[query] = {f"{topic}-{partition}": offset for (topic, partition), offset in offsets.items()}
    if not batches:
        raise ConfigError(f"{home.path} has no checkpoints: they are on a remote file system, or were removed")
    with open(os.path.join(part, IDENTITY), "w", encoding="utf-8") as file:
        file.write(identity.encode())
    description = {"taken_ms": now_ms, "batches": batches, "positions": positions}
    with open(os.path.join(part, _DESCRIPTION), "w", encoding="utf-8") as file:
        json.dump(description, file, indent=2)
    sync_folder(part)
    # A folder under its final name is complete.
    os.rename(part, path)
    return Snapshot(label, path, now_ms, identity, batches, positions)


def _link(source: str, target: str) -> str:
    """Link a file instead of copying it: files of a checkpoint are replaced, and never changed in place."""
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        return shutil.copy2(source, target)
    return target


def _queries(identity: QueryIdentity, home: Home) -> list[str]:
    """Return the queries that have a checkpoint, those of dead letters too."""
    letters = [f"{query}{DEAD_LETTERS}" for query in _statements(home)]
    return list(dict.fromkeys([*identity.queries, *identity.generations, *letters]))


def _statements(home: Home) -> list[str]:
    """Return the statements that may have dead letters; their queries are not part of an identity."""
    names = {name.rpartition(".")[0] for name in os.listdir(home.path)}
    return sorted(name.removesuffix(DEAD_LETTERS) for name in names if name.endswith(DEAD_LETTERS))


def _folder_of(identity: QueryIdentity, query: str) -> str:
    return f"{query}.{identity.generation(query.removesuffix(DEAD_LETTERS), query)}"


def list_snapshots(home: Home) -> list[Snapshot]:
    """Return the restore points of a pipeline, the oldest first."""
    root = os.path.join(home.path, _SNAPSHOTS)
    labels = [name for name in os.listdir(root) if not name.startswith(".")] if os.path.isdir(root) else []
    return sorted((_read(os.path.join(root, label)) for label in labels), key=lambda snapshot: snapshot.taken_ms)


def find_snapshot(home: Home, label: str) -> Snapshot:
    """Return a restore point; ConfigError when there is none."""
    path = os.path.join(home.path, _SNAPSHOTS, label)
    if not _LABEL.fullmatch(label) or not os.path.isdir(path):
        labels = [snapshot.label for snapshot in list_snapshots(home)]
        existing = f"; there are {', '.join(labels)}" if labels else "; `klamm pipeline snapshot` makes one"
        raise ConfigError(f"there is no snapshot {label} in {home.path}{suggest(label, labels) or existing}")
    return _read(path)


def remove_snapshot(home: Home, label: str) -> None:
    """Remove a restore point; ConfigError when there is none."""
    shutil.rmtree(find_snapshot(home, label).path)


def _read(path: str) -> Snapshot:
    try:
        with open(os.path.join(path, _DESCRIPTION), encoding="utf-8") as file:
            description: dict[str, Any] = json.load(file)
        with open(os.path.join(path, IDENTITY), encoding="utf-8") as file:
            identity = QueryIdentity.decode(file.read(), path)
        return Snapshot(
            os.path.basename(path),
            path,
            int(description["taken_ms"]),
            identity,
            description["batches"],
            description["positions"],
        )
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a snapshot: {error!r}") from None
