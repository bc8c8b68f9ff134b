"""Where the state of a pipeline is: by the pipeline's name and its cluster, wherever a command is typed.

    SET checkpoint, --state DIR                         if given and on this machine; with --state in DIR/<name>
    .klamm/pipelines/<name>                             if it exists in the current folder, or beside the file
    $XDG_DATA_HOME/klamm/pipelines/<cluster id>/<name>  otherwise; without the variable in ~/.local/share

When checkpoints are on a shared file system, the second or third place has the files of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from klamm.client.errors import KafkaError
from klamm.model.errors import ConfigError
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.problems import suggest
from klamm.pipeline.sql.known_homes import (
    LOCAL_ROOT,
    KnownHome,
    cluster_folder,
    data_root,
    homes_below,
    homes_by_cluster,
)
from klamm.pipeline.sql.object_store_identity import is_remote
from klamm.pipeline.sql.status import Home, is_home
from klamm.pipeline.sql.topics import ClusterTopics

_LOOKUP_MS: Final = "2000"
"""How long a command that only reads state waits for the cluster's id."""


def name_of(pipeline: Pipeline) -> str:
    """Return a pipeline's name: SET name, or its file's name."""
    name = pipeline.settings.get("name")
    return name or os.path.splitext(os.path.basename(pipeline.source.name))[0]


def home_of(pipeline: Pipeline, client: Mapping[str, str] | None = None) -> Home:
    """Return the folder of a pipeline; reads the cluster's id if no other place is given or exists."""
    placed = placed_home(pipeline)
    return placed if placed is not None else _cluster_home(pipeline, ClusterTopics(pipeline, client).cluster_id())


def placed_home(pipeline: Pipeline) -> Home | None:
    """Return the folder that the pipeline names, or that exists where older versions had it; None without either."""
    checkpoint = pipeline.settings.get("checkpoint")
    if checkpoint and not is_remote(checkpoint):
        return Home(checkpoint)
    # The current folder first: that is where older versions looked.
    for parent in dict.fromkeys(("", os.path.dirname(pipeline.source.name))):
        path = os.path.join(parent, LOCAL_ROOT, name_of(pipeline))
        if is_home(path):
            return Home(path)
    return None


def describe_place(pipeline: Pipeline, home: Home) -> str | None:
    """Return a line about a folder that is used because it exists; None for one that was named, or is the usual one."""
    checkpoint = pipeline.settings.get("checkpoint")
    if os.path.abspath(home.path).startswith(os.path.abspath(data_root()) + os.sep) or home.path == checkpoint:
        return None
    return f"state is in {os.path.abspath(home.path)}, which exists; without it, in {data_root()} by cluster"


def stored_home(pipeline: Pipeline, client: Mapping[str, str] | None = None) -> Home | None:
    """Return the folder of a pipeline that has run; None when it has not.

    Without an answer of the cluster, the only pipeline of this name counts.
    """
    placed = placed_home(pipeline)
    if placed is not None:
        return placed if is_home(placed.path) else None
    name = name_of(pipeline)
    candidates = [known.home for known in homes_by_cluster() if known.name == name]
    # Most commands in a fresh folder: nothing to choose from, so the cluster is not needed.
    if not candidates:
        return None
    try:
        brief = {**(client or {}), "bootstrap.timeout.ms": _LOOKUP_MS, "default.api.timeout.ms": _LOOKUP_MS}
        home = _cluster_home(pipeline, ClusterTopics(pipeline, brief).cluster_id())
    except KafkaError as error:
        if len(candidates) > 1:
            places = ", ".join(home.path for home in candidates)
            raise ConfigError(
                f"{name} has state of several clusters ({places}), and the cluster does not answer: {error}"
            ) from None
        return candidates[0]
    return home if is_home(home.path) else None


def _cluster_home(pipeline: Pipeline, cluster: str) -> Home:
    return Home(os.path.join(data_root(), cluster_folder(cluster), name_of(pipeline)))


def known_homes(root: str | None = None) -> list[KnownHome]:
    """Return the pipelines under a folder; by default those of the current folder, then those of each cluster."""
    if root is None:
        return [*homes_below(LOCAL_ROOT), *homes_by_cluster()]
    if is_remote(root):
        raise ConfigError(f"{root} has checkpoints only: a status is on the machine that runs the pipeline")
    return homes_below(root)


def find_home(name: str, root: str | None = None) -> Home:
    """Return a pipeline by its name or its folder; ConfigError when there is none, or more than one."""
    if is_home(name):
        return Home(name)
    known = known_homes(root)
    matches = [candidate.home for candidate in known if candidate.name == name]
    if not matches:
        place = root or f"{LOCAL_ROOT} or {data_root()}"
        names = sorted({candidate.name for candidate in known})
        raise ConfigError(f"there is no pipeline {name} in {place}{suggest(name, names)}")
    if len(matches) > 1:
        places = "\n".join(home.path for home in matches)
        raise ConfigError(f"there are {len(matches)} pipelines {name}; name one by its folder:\n{places}")
    return matches[0]
