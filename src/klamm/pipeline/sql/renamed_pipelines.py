"""Finds the state of a pipeline whose file was renamed, by its outputs, and moves it to the new name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Final

from klamm.client.errors import KafkaError
from klamm.pipeline.sql.core.graph import Pipeline
from klamm.pipeline.sql.core.pipeline_record import PipelineRecord, find_renamed, output_places
from klamm.pipeline.sql.object_store_identity import is_remote
from klamm.pipeline.sql.pipeline_registry import PipelineRegistry
from klamm.pipeline.sql.state_folders import home_of, name_of
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.topics import ClusterTopics

_log = logging.getLogger(__name__)
_BOOTSTRAP_MS: Final = "300"
"""How long a command that only reads tries to connect again: a file can be planned before there is a cluster."""
_LOOKUP_MS: Final = "2000"
"""How long it waits for an answer of the cluster."""


def take_renamed(pipeline: Pipeline, home: Home, registry: PipelineRegistry, report: Callable[[str], None]) -> None:
    """Move the state of the same pipeline of an older name into the folder of the new one, if that is a new folder.

    ConfigError while the pipeline runs under the older name.
    """
    if home.identity() is not None:
        return
    name = name_of(pipeline)
    record = _find_renamed(pipeline, name, registry)
    older = None if record is None else _movable(record, home, registry.host)
    if record is None or older is None:
        return
    # Another machine may run it on the same folder.
    registry.check_lease(record.identity, record.folder)
    home.take(older)
    report(f"{name} has run as {record.name}: it continues, and its state was moved to {os.path.abspath(home.path)}")


def find_older_name(
    pipeline: Pipeline, client: Mapping[str, str] | None = None
) -> tuple[PipelineRecord | None, str | None]:
    """Return the record under which a pipeline has run before its file was renamed, and what a run would do with it.

    Nothing without a cluster, too.
    """
    brief = {**(client or {}), "bootstrap.timeout.ms": _BOOTSTRAP_MS, "default.api.timeout.ms": _LOOKUP_MS}
    try:
        registry = ClusterTopics(pipeline, brief).registry()
        record = _find_renamed(pipeline, name_of(pipeline), registry)
        if record is None:
            return None, None
        is_same_folder = record.folder == pipeline.settings.get("checkpoint")
        if is_same_folder or _movable(record, home_of(pipeline, brief), registry.host) is not None:
            effect = "run continues it"
        else:
            effect = f"its folder is elsewhere, SET name = '{record.name}' continues it there"
        return record, f"{name_of(pipeline)} has run as {record.name} in {record.place}: {effect}"
    except KafkaError as error:
        # A new file can be planned before there is a cluster; run looks again.
        _log.info("whether the pipeline has run under another name is not known: %s", error)
        return None, None


def _find_renamed(pipeline: Pipeline, name: str, registry: PipelineRegistry) -> PipelineRecord | None:
    outputs = output_places(pipeline, registry.host, os.getcwd())
    return find_renamed(registry.read_all(name), name, pipeline, outputs)


def _movable(record: PipelineRecord, home: Home, host: str) -> Home | None:
    """Return the folder of the older name; None when it is not beside that of the new one, or no longer there."""
    older = Home(record.folder)
    if is_remote(record.folder) or record.host != host or not os.path.isdir(record.folder):
        return None
    if os.path.basename(record.folder) != record.name:
        return None
    if os.path.dirname(record.folder) != os.path.dirname(os.path.abspath(home.path)):
        return None
    identity = older.identity()
    return older if identity is not None and identity.id == record.identity.id else None
