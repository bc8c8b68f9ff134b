"""The data source itself: `format("klamm")`, readers and writers of topics."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource


class KlammSource(DataSource):  # type: ignore[misc]
    """Topics as rows: batch and streaming, in and out, with the options of Spark's Kafka connector."""

    @classmethod
    def name(cls) -> str:
        """The word for format(...)."""
        return "klamm"

    def schema(self) -> str:
        """The columns of a read."""
        from klamm.pipeline.source import schema  # noqa: PLC0415 - each side of Spark loads what it needs

        return schema(self.options)

    def reader(self, schema: Any) -> Any:  # noqa: ARG002 - it is always the same
        """A bounded read."""
        from klamm.pipeline.source import BatchReader  # noqa: PLC0415

        return BatchReader(dict(self.options))

    def streamReader(self, schema: Any) -> Any:  # noqa: N802, ARG002 - Spark's name
        """An unbounded read."""
        from klamm.pipeline.source import StreamReader  # noqa: PLC0415

        return StreamReader(dict(self.options))

    def writer(self, schema: Any, overwrite: bool) -> Any:
        """A batch write."""
        from klamm.pipeline.sink import BatchWriter  # noqa: PLC0415

        return BatchWriter(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802, ARG002
        """A streaming write."""
        from klamm.pipeline.sink import StreamWriter  # noqa: PLC0415

        return StreamWriter(dict(self.options), schema)
