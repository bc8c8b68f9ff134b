"""The options of a captured table, with secrets taken from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from klamm.pipeline.postgres.core.capture_position import NAME_MAX, default_slot, plain_name, slot_name
from klamm.pipeline.sql.core.secrets import expand, is_secret

if TYPE_CHECKING:
    from klamm.pipeline.sql.core.graph import GraphNode

DEFAULT_BATCH: Final = 10_000
_DEFAULT_SCHEMA: Final = "public"


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Where a table is, and by which names PostgreSQL keeps its changes."""

    name: str
    """The query's name, for messages."""
    url: str
    schema: str
    table: str
    key: tuple[str, ...]
    slot: str
    slot_like: str
    """A pattern of LIKE for the names of this table's slots, of all pipelines and generations."""
    publication: str
    older_slots: tuple[str, ...] = ()
    """Slots of earlier generations, which a rebuild has replaced."""
    user: str | None = None
    password: str | None = None
    batch_size: int = DEFAULT_BATCH
    with_rows: bool = True
    """Whether the rows that the table has at the first start are captured, and not only changes from then on."""
    secrets: tuple[str, ...] = ()

    @property
    def qualified(self) -> str:
        """The table as PostgreSQL's SQL names it."""
        return f"{quote(self.schema)}.{quote(self.table)}"


def _escape(name: str) -> str:
    return name.replace("_", r"\_")


def quote(name: str) -> str:
    """Return an identifier of PostgreSQL, quoted."""
    return '"' + name.replace('"', '""') + '"'


def capture_options(
    node: GraphNode, pipeline_id: str, generation: int, environment: Mapping[str, str] | None = None
) -> CaptureOptions:
    """Return the options of a source; ConfigError when the environment lacks a variable."""
    variables = os.environ if environment is None else environment
    options = {name: expand(value.text, variables, name) for name, value in node.create.options.items()}
    schema, _, table = options["table"].rpartition(".")
    base = options.get("slot") or default_slot(pipeline_id, node.name)
    publication = f"klamm_{plain_name(schema or _DEFAULT_SCHEMA)}_{plain_name(table)}"[:NAME_MAX]
    return CaptureOptions(
        node.name,
        options["url"],
        schema or _DEFAULT_SCHEMA,
        table,
        node.key,
        slot_name(base, generation),
        f"{_escape(options['slot'])}%" if "slot" in options else f"klamm\\_%\\_{_escape(plain_name(node.name))}%",
        # Without the pipeline's id: a publication may be shared, and its creator may not know the id.
        options.get("publication") or publication,
        tuple(slot_name(base, older) for older in range(generation)),
        options.get("user"),
        options.get("password"),
        int(options.get("batch_size") or DEFAULT_BATCH),
        (options.get("starting") or "earliest").lower() != "latest",
        tuple(text for name, text in options.items() if is_secret(name)),
    )
