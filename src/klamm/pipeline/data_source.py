"""The data source that Spark registers as `format("klamm")`: it hands out readers and writers of topics."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class KlammDataSource(DataSource):  # type: ignore[misc]
    """Topics as rows: batch and streaming, in and out, with the options of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        """Return the name for format(...)."""
        return "klamm"

    # Spark runs this in a Python process of its own, which has to import only what it needs.
    def schema(self) -> str:
        """Return the columns of a read."""
        from klamm.pipeline.source import schema  # noqa: PLC0415 - each side of Spark loads what it needs

        return schema(self.options)

    def reader(self, schema: Any) -> Any:  # noqa: ARG002 - it is always the same
        """Return the reader of a bounded read."""
        from klamm.pipeline.source import BatchReader  # noqa: PLC0415

        # Spark's mapping has names in lower case; `connector_options` restores their spelling.
        return BatchReader(dict(self.options))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802, ARG002 - Spark's name
        """Return the reader of an unbounded read."""
        from klamm.pipeline.source import StreamReader  # noqa: PLC0415

        return StreamReader(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """Return the writer of a batch."""
        from klamm.pipeline.sink import BatchWriter  # noqa: PLC0415

        return BatchWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802, ARG002
        """Return the writer of a stream."""
        from klamm.pipeline.sink import StreamWriter  # noqa: PLC0415

        return StreamWriter(dict(self.options), schema)
