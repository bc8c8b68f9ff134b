"""The pipelines that have run on this machine, by the folders of their state. Needs no cluster and no Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.pipeline.sql.status import Home, is_home

LOCAL_ROOT: Final = os.path.join(".klamm", "pipelines")
"""Where older versions kept state, below the folder in which `run` was typed."""
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, slots=True)
class KnownHome:
    """A pipeline that has run on this machine; `cluster` is empty for a folder that does not say."""

    name: str
    cluster: str
    home: Home


def data_root(environment: Mapping[str, str] | None = None) -> str:
    """Return the folder with the state of pipelines of all clusters."""
    variables = os.environ if environment is None else environment
    data = variables.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(data, "klamm", "pipelines")


def cluster_folder(cluster: str) -> str:
    """Return the name of the folder of a cluster's pipelines below the data root."""
    return _UNSAFE.sub("_", cluster)


def homes_by_cluster() -> list[KnownHome]:
    """Return the pipelines of each cluster."""
    root = data_root()
    return [known for cluster in _folders(root) for known in homes_below(os.path.join(root, cluster), cluster)]


def homes_below(root: str, cluster: str = "") -> list[KnownHome]:
    """Return the pipelines under a folder."""
    paths = {name: os.path.join(root, name) for name in _folders(root)}
    return [KnownHome(name, cluster, Home(path)) for name, path in paths.items() if is_home(path)]


def _folders(root: str) -> list[str]:
    try:
        return sorted(os.listdir(root))
    except (FileNotFoundError, NotADirectoryError):
        return []
