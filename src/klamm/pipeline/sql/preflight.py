"""Checks what a pipeline needs before Spark starts: secrets, functions, folders, packages, brokers, topics, registries.

A session takes ten seconds or more to start. All problems are reported at once, with their positions in the file.
"""

from __future__ import annotations

import glob
import os
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from typing import Final
from urllib.parse import urlsplit

from klamm.model.errors import ConfigError, KlammError
from klamm.pipeline.core.lake_tables import FILES
from klamm.pipeline.postgres.capture_options import capture_options
from klamm.pipeline.postgres.database import PostgresTable
from klamm.pipeline.postgres.table_checks import check_table
from klamm.pipeline.sql.core.captured_tables import POSTGRES
from klamm.pipeline.sql.core.graph import GraphNode, Pipeline
from klamm.pipeline.sql.core.parser import parse
from klamm.pipeline.sql.core.problems import SqlError, SqlProblem
from klamm.pipeline.sql.core.secrets import expand
from klamm.pipeline.sql.core.statements import SINK, SOURCE, CreateFunction, Set
from klamm.pipeline.sql.object_store_identity import is_remote
from klamm.pipeline.sql.topics import ClusterTopics
from klamm.pipeline.sql.user_functions import find_modules_beside, load_function

_CONNECT_S: Final = 1.0
"""How long an address may take to accept a connection: the first error must come within two seconds."""
_DATABASE_S: Final = 2
"""As above; libpq waits for at least two seconds."""
_LIBRARIES: Final = {"delta": ("deltalake", "klamm[delta]"), "iceberg": ("pyiceberg", "klamm[iceberg]")}


def check_start(
    pipeline: Pipeline,
    client: Mapping[str, str] | None,
    home: str,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Raise SqlError with everything that would keep a pipeline from running."""
    variables = os.environ if environment is None else environment
    find_modules_beside(pipeline)
    secrets = list(_missing_secrets(pipeline, variables))
    problems = [*secrets, *_missing_functions(pipeline), *_unusable_folders(pipeline, home)]
    # Addresses and credentials cannot be used without their variables.
    if not secrets:
        # Side by side: each may wait for an address that does not answer.
        captures = [node for node in pipeline.nodes if node.connector == POSTGRES]
        with ThreadPoolExecutor(2 + len(captures)) as pool:
            cluster = pool.submit(_cluster_problems, pipeline, client)
            registry = pool.submit(_registry_problems, pipeline, variables)
            tables = [pool.submit(_capture_problems, node, variables) for node in captures]
            problems += [*cluster.result(), *registry.result()]
            problems += [problem for table in tables for problem in table.result()]
    if problems:
        raise SqlError(pipeline.source, problems)


def _setting_offset(pipeline: Pipeline, name: str) -> int:
    """Return where a SET has its value; 0 for a setting of the command line."""
    statements, _ = parse(pipeline.source.text)
    offsets = [
        statement.value.offset for statement in statements if isinstance(statement, Set) and statement.name == name
    ]
    return offsets[-1] if offsets else 0


def _missing_secrets(pipeline: Pipeline, variables: Mapping[str, str]) -> Iterator[SqlProblem]:
    values = [(name, text, _setting_offset(pipeline, name)) for name, text in pipeline.settings.items() if "${" in text]
    for node in pipeline.nodes:
        values += [(name, value.text, value.offset) for name, value in node.create.options.items()]
    for name, text, offset in values:
        try:
            expand(text, variables, name)
        except ConfigError as error:
            yield SqlProblem(offset, str(error))


def _missing_functions(pipeline: Pipeline) -> Iterator[SqlProblem]:
    for function in pipeline.functions:
        problem = _function_problem(function)
        if problem is not None:
            yield SqlProblem(function.target_offset, problem)


def _function_problem(function: CreateFunction) -> str | None:
    try:
        load_function(function.target)
    except ConfigError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - a user's module raises anything while it is imported
        return f"{function.target.partition(':')[0]} cannot be imported: {type(error).__name__}: {error}"
    return None


def _unusable_folders(pipeline: Pipeline, home: str) -> Iterator[SqlProblem]:
    reason = _not_writable(home)
    if reason is not None:
        yield SqlProblem(_setting_offset(pipeline, "checkpoint"), f"the pipeline's folder {home} {reason}")
    for node in pipeline.nodes:
        yield from _missing_jars(node)
        path = node.create.options.get("path")
        kind = (node.option("format") or "").lower()
        if node.kind == SINK and kind in _LIBRARIES and find_spec(_LIBRARIES[kind][0]) is None:
            library, extra = _LIBRARIES[kind]
            offset = node.create.options["format"].offset
            yield SqlProblem(offset, f"{kind} needs the package {library}: pip install '{extra}'")
        if path is None or is_remote(path.text) or "${" in path.text:
            continue
        local = path.text.removeprefix("file://")
        if node.kind == SINK and kind in (*FILES, *_LIBRARIES):
            reason = _not_writable(local)
            if reason is not None:
                yield SqlProblem(path.offset, f"{local} {reason}")
        elif node.kind == SOURCE and not glob.glob(local):
            yield SqlProblem(path.offset, f"{local} does not exist")


def _missing_jars(node: GraphNode) -> Iterator[SqlProblem]:
    jars = node.create.options.get("driver_jar")
    for path in jars.text.split(",") if jars is not None else ():
        if jars is not None and not is_remote(path.strip()) and not os.path.exists(path.strip()):
            yield SqlProblem(jars.offset, f"{path.strip()} does not exist")


def _not_writable(path: str) -> str | None:
    """Return why a folder cannot be written, or made; None when it can."""
    folder = os.path.abspath(path)
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):
        return "is not a folder" if folder == os.path.abspath(path) else f"cannot be made: {folder} is not a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"cannot be written: no permission for {folder}"
    return None


def _cluster_problems(pipeline: Pipeline, client: Mapping[str, str] | None) -> list[SqlProblem]:
    if not any(node.has_topic for node in pipeline.nodes):
        return []
    topics = ClusterTopics(pipeline, client)
    offset = _setting_offset(pipeline, "bootstrap")
    reasons = _unreachable(topics.bootstrap.split(","))
    if reasons is not None:
        return [SqlProblem(offset, f"no broker answers at {reasons}; klamm up starts one, -b names another")]
    try:
        return [SqlProblem(position, message) for position, message in topics.problems()]
    except (KlammError, ConfigError, OSError) as error:
        return [SqlProblem(offset, f"the cluster at {topics.bootstrap} cannot be read: {error}")]


def _registry_problems(pipeline: Pipeline, variables: Mapping[str, str]) -> list[SqlProblem]:
    positions: dict[str, int] = {}
    for node in pipeline.nodes:
        if node.registered or node.key_registered:
            option = node.create.options.get("registry")
            text = option.text if option is not None else pipeline.settings.get("registry") or ""
            offset = option.offset if option is not None else _setting_offset(pipeline, "registry")
            positions.setdefault(expand(text, variables, "registry"), offset)
    problems = []
    for urls, offset in positions.items():
        parts = [urlsplit(url.strip()) for url in urls.split(",") if url.strip()]
        default = {"https": 443}
        reasons = _unreachable([f"{part.hostname}:{part.port or default.get(part.scheme, 80)}" for part in parts])
        if reasons is not None:
            problems.append(SqlProblem(offset, f"no registry answers at {reasons}"))
    return problems


def _capture_problems(node: GraphNode, variables: Mapping[str, str]) -> list[SqlProblem]:
    """Return why the table of a database cannot be captured, at the option that names the table."""
    offset = node.create.options["table"].offset
    # The pipeline's id, a part of the slot's name, is not known yet.
    table = PostgresTable(capture_options(node, "", 0, variables), connect_s=_DATABASE_S)
    try:
        return [SqlProblem(offset, problem) for problem in check_table(table)]
    except ConfigError as error:
        return [SqlProblem(node.create.options["connector"].offset, str(error))]
    except Exception as error:  # noqa: BLE001 - the driver is an extra, its errors cannot be named
        shown = error if isinstance(error, KlammError) else table.wrap_error(error)
        message = str(shown).removeprefix(f"{node.name}: ")
        return [SqlProblem(node.create.options["url"].offset, f"PostgreSQL cannot be reached: {message}")]
    finally:
        table.close()


def _unreachable(addresses: list[str]) -> str | None:
    """Return all addresses with why they cannot be reached; None when one can be."""
    with ThreadPoolExecutor(max(len(addresses), 1)) as pool:
        reasons = list(pool.map(_connection_error, addresses))
    if not reasons or None in reasons:
        return None
    return ", ".join(f"{address.strip()} ({reason})" for address, reason in zip(addresses, reasons, strict=True))


def _connection_error(address: str) -> str | None:
    host, _, port = address.strip().rpartition(":")
    if not port.isdecimal():
        return None  # the client reports a malformed address better
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S):
            return None
    except TimeoutError:
        return "no answer"
    except (OSError, OverflowError) as error:
        return getattr(error, "strerror", None) or str(error)
