"""`from_registry` and `to_registry`: bytes to values and back, column by column, and what becomes of broken records.

The schema that gives a column its type is looked up once, when the query is made. Tasks ask the registry only for
schemas that records name and that their process does not know yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.model.errors import ConfigError
from klamm.pipeline.core.registry_framing import HEADERS, BadRecord, header, prefix, unframe
from klamm.pipeline.registry.client import Registry, Schema, Settings, parse_settings, shared_registry
from klamm.pipeline.registry.codecs import Codec, Decoder, compile_schema

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame

POLICIES: Final = ("fail", "dead_letter")
FRAMINGS: Final = ("prefix", "header")
LETTER: Final = "dead_letter."
"""What the headers of a dead letter begin with: those of `klamm pipeline dlq`, which reads these too."""


def from_registry(
    column: Column | str,
    registry: str | Mapping[str, str],
    *,
    subject: str | None = None,
    schema_id: int | None = None,
    message: str | None = None,
    headers: Column | str | None = None,
    part: str = "value",
    bad: str = "fail",
) -> Column:
    """Values out of bytes that name their schema, in the columns of the newest schema of `subject` (or of `schema_id`).

    With `headers` the schema may also be named there, for the record's `part`. `bad="fail"` ends the query at a record
    that cannot be read; with "dead_letter" the column is a struct of `record` and `error`, one of them null, for
    `good_rows` and `dead_letters`. A null stays null.
    """
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra

    _one_of("bad", bad, POLICIES)
    _one_of("part", part, tuple(HEADERS))
    where = parse_settings(registry)
    schema = _chosen(shared_registry(where), subject, schema_id)
    arrow = compile_schema(shared_registry(where), schema, message).arrow
    lenient = bad == "dead_letter"
    kind = from_arrow_type(arrow)
    if lenient:
        from pyspark.sql.types import StringType, StructType  # noqa: PLC0415

        kind = StructType().add("record", kind).add("error", StringType())
    work = _Reading(where, schema, message, HEADERS[part], lenient)
    columns = [column] if headers is None else [column, headers]
    return _function(work, kind)(*columns)


def make_reader(
    registry: str | Mapping[str, str],
    *,
    subject: str,
    names: Sequence[str],
    message: str | None = None,
    part: str = "value",
    alone: str | None = None,
) -> Any:
    """What `from_registry` does with bytes and headers, as a function to register with a session.

    It returns a struct of `record` and `error`; the record has these `names`, null where the schema has none. A value
    that is no record is the field `alone`. Spark shall not move it about: it is called once for each row.
    """
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415 - pyspark is an extra
    from pyspark.sql.types import StringType, StructType  # noqa: PLC0415

    where = parse_settings(registry)
    schema = shared_registry(where).latest(subject)
    arrow = select_fields(compile_schema(shared_registry(where), schema, message).arrow, names, alone)
    kind = StructType().add("record", from_arrow_type(arrow)).add("error", StringType())
    work = _Reading(where, schema, message, HEADERS[part], True, _Picking(tuple(names), alone))
    return _function(work, kind).asNondeterministic()


class _Picking(NamedTuple):
    """Which fields of a record are wanted."""

    names: tuple[str, ...]
    alone: str | None


def select_fields(arrow: Any, names: Sequence[str], alone: str | None) -> Any:
    """The type of a record with these fields, out of a schema's type; names are found in any case."""
    import pyarrow as pa  # noqa: PLC0415

    known = _fields(arrow, alone)
    return pa.struct([(name, known.get(name.lower(), pa.string())) for name in names])


def _fields(arrow: Any, alone: str | None) -> dict[str, Any]:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_struct(arrow):
        return {each.name.lower(): each.type for each in arrow}
    return {} if alone is None else {alone.lower(): arrow}


def make_writer(
    registry: str | Mapping[str, str],
    *,
    subject: str,
    message: str | None = None,
    framing: str = "prefix",
    alone: str | None = None,
) -> Any:
    """What `to_registry` does with a struct, as a function to register; where the schema is no record, with `alone`."""
    _one_of("framing", framing, FRAMINGS)
    where = parse_settings(registry)
    found = shared_registry(where).latest(subject)
    if framing == "prefix" and found.id is None:
        raise ConfigError(f"the registry gives the schema of {subject} no id")
    import pyarrow as pa  # noqa: PLC0415

    single = not pa.types.is_struct(compile_schema(shared_registry(where), found, message).arrow)
    if single and alone is None:
        raise ConfigError(f"the schema of {subject} is no record, and there are several columns")
    work = _Writing(where, found, message, framing == "prefix", alone if single else None)
    return _function(work, "binary")


def to_registry(
    column: Column | str,
    registry: str | Mapping[str, str],
    *,
    subject: str,
    schema: str | None = None,
    kind: str = "AVRO",
    message: str | None = None,
    framing: str = "prefix",
) -> Column:
    """Bytes out of values, by the newest schema of `subject`; a `schema` (text, of `kind`) is registered first.

    `framing="header"` leaves the payload bare; the header goes with it by `registry_header`. A null stays null, which
    deletes the key in a compacted topic. A value that does not fit ends the query.
    """
    _one_of("framing", framing, FRAMINGS)
    where = parse_settings(registry)
    found = _written(shared_registry(where), subject, schema, kind)
    compile_schema(shared_registry(where), found, message)  # what is wrong with it is said here, not by a task
    if framing == "prefix" and found.id is None:
        raise ConfigError(f"the registry gives the schema of {subject} no id")
    work = _Writing(where, found, message, framing == "prefix")
    return _function(work, "binary")(column)


def _function(work: Callable[..., Any], kind: Any) -> Any:
    """A function of Spark over Arrow columns; Spark reads the hints, so they are real types."""
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.functions import arrow_udf  # noqa: PLC0415

    def call(*columns):  # type: ignore[no-untyped-def] # noqa: ANN002, ANN202
        return work(*columns)

    call.__annotations__ = {"columns": pa.Array, "return": pa.Array}
    return arrow_udf(call, kind)


def registry_header(
    registry: str | Mapping[str, str], *, subject: str, message: str | None = None, part: str = "value"
) -> Column:
    """The header that names the newest schema of `subject`, for an array of headers."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    name, value = schema_header(registry, subject=subject, message=message, part=part)
    return f.struct(f.lit(name).alias("key"), f.lit(bytearray(value)).alias("value"))


def schema_header(
    registry: str | Mapping[str, str], *, subject: str, message: str | None = None, part: str = "value"
) -> tuple[str, bytes]:
    """Name and value of that header."""
    _one_of("part", part, tuple(HEADERS))
    home = shared_registry(parse_settings(registry))
    schema = home.latest(subject)
    if schema.guid is None:
        raise ConfigError(f"the registry gives the schema of {subject} no GUID, which headers need: use framing=prefix")
    return HEADERS[part], header(schema.guid) + (compile_schema(home, schema, message).path or b"")


def good_rows(rows: DataFrame, column: str) -> DataFrame:
    """Rows that could be read, with the record itself in `column`."""
    from pyspark.sql import functions as f  # noqa: PLC0415

    return rows.where(f.col(f"{column}.error").isNull()).withColumn(column, f.col(f"{column}.record"))


def dead_letters(rows: DataFrame, column: str, topic: str) -> DataFrame:
    """Rows that could not be read, as records for `topic`: key and value as they came, origin and error in headers.

    `column` names the stream they are shown under.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415

    broken = rows.where(f.col(f"{column}.error").isNotNull())

    def told(name: str, value: Column) -> Column:
        return f.struct(f.lit(LETTER + name).alias("key"), value.cast("string").cast("binary").alias("value"))

    added = f.array(
        told("stream", f.lit(column)),
        *(told(each, f.col(each)) for each in ("topic", "partition", "offset")),
        told("timestamp", f.unix_millis("timestamp")),
        told("error", f.col(f"{column}.error")),
    )
    if "headers" in rows.columns:
        added = f.concat(f.coalesce(f.col("headers"), f.array().cast(_HEADERS)), added.cast(_HEADERS))
    return broken.select(f.lit(topic).alias("topic"), "key", "value", added.cast(_HEADERS).alias("headers"))


_HEADERS = "array<struct<key:string,value:binary>>"


class _Reading:
    """What a task does with a column: sent to it as settings, made ready there at the first batch."""

    def __init__(
        self,
        where: Settings,
        schema: Schema,
        message: str | None,
        name: str,
        lenient: bool,
        picking: _Picking | None = None,
    ) -> None:
        self._given = (where, schema, message, name, lenient, picking)
        self._ready: tuple[Decoder, Any] | None = None

    def __getstate__(self) -> Any:
        return self._given

    def __setstate__(self, given: Any) -> None:
        self._given = given
        self._ready = None

    def __call__(self, values: pa.Array, headers: pa.Array | None = None) -> pa.Array:
        where, schema, message, name, lenient, picking = self._given
        if self._ready is None:
            newest = compile_schema(shared_registry(where), schema, message)
            self._ready = Decoder(shared_registry(where), newest), newest.arrow
        decoder, arrow = self._ready
        told = _headers(headers, name, len(values))
        records: list[Any] = []
        errors: list[str | None] = []
        for data, named in zip(values.to_pylist(), told, strict=True):
            error = None
            value = None
            if data is not None:
                try:
                    value = decoder.decode(unframe(data, named))
                except BadRecord as problem:
                    if not lenient:
                        raise
                    error = str(problem)
            records.append(value)
            errors.append(error)
        return _column(records, errors, arrow, lenient, picking)


def _headers(column: Any, name: str, count: int) -> Sequence[bytes | None]:
    """Of each row, the last header of a name."""
    if column is None:
        return [None] * count
    return [
        next((each["value"] for each in reversed(row or ()) if each["key"] == name), None) for row in column.to_pylist()
    ]


def _column(
    records: list[Any], errors: list[str | None], arrow: Any, lenient: bool, picking: _Picking | None = None
) -> Any:
    """Arrow out of values; one that its type cannot hold (a number too large) is a broken record too."""
    import pyarrow as pa  # noqa: PLC0415

    troubles = (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError)
    try:
        found = pa.array(records, arrow)
    except troubles:
        for at, each in enumerate(records):
            try:
                pa.array([each], arrow)
            except troubles as problem:
                if not lenient:
                    raise BadRecord(f"does not fit its column: {problem}") from None
                records[at], errors[at] = None, f"does not fit its column: {problem}"
        found = pa.array(records, arrow)
    if not lenient:
        return found
    if picking is not None:
        found = _pick(found, picking)
    return pa.StructArray.from_arrays([found, pa.array(errors, pa.string())], names=["record", "error"])


def _pick(values: Any, picking: _Picking) -> Any:
    """The wanted fields; a record that is null stays null."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # type: ignore[import-untyped] # noqa: PLC0415

    if pa.types.is_struct(values.type):
        parts = {each.name.lower(): part for each, part in zip(values.type, values.flatten(), strict=True)}
    else:
        parts = {} if picking.alone is None else {picking.alone.lower(): values}
    empty = pa.nulls(len(values), pa.string())
    return pa.StructArray.from_arrays(
        [parts.get(name.lower(), empty) for name in picking.names],
        names=list(picking.names),
        mask=pc.is_null(values),
    )


class _Writing:
    """As `_Reading`, the other way."""

    def __init__(
        self, where: Settings, schema: Schema, message: str | None, prefixed: bool, alone: str | None = None
    ) -> None:
        self._given = (where, schema, message, prefixed, alone)
        self._ready: tuple[Codec, bytes] | None = None

    def __getstate__(self) -> Any:
        return self._given

    def __setstate__(self, given: Any) -> None:
        self._given = given
        self._ready = None

    def __call__(self, values: pa.Array) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415

        where, schema, message, prefixed, alone = self._given
        if self._ready is None:
            codec = compile_schema(shared_registry(where), schema, message)
            first = prefix(schema.id or 0) + (codec.path or b"") if prefixed else b""
            self._ready = codec, first
        codec, first = self._ready
        if alone is not None:
            values = values.field(alone)
        plain = _plain(values.type) or (lambda value: value)
        return pa.array(
            [None if each is None else first + codec.encode(plain(each)) for each in values.to_pylist()], pa.binary()
        )


def _plain(arrow: Any) -> Callable[[Any], Any] | None:
    """What turns Arrow's lists of pairs into the maps they are; None where there are none."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_struct(arrow):
        work = {each.name: inner for each in arrow if (inner := _plain(each.type)) is not None}
        if not work:
            return None
        return lambda value: value and {**value, **{name: each(value[name]) for name, each in work.items()}}
    if pa.types.is_map(arrow):
        inner = _plain(arrow.item_type) or (lambda value: value)
        return lambda value: None if value is None else {key: inner(each) for key, each in value}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        item = _plain(arrow.value_type)
        return None if item is None else lambda value: None if value is None else [item(each) for each in value]
    return None


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name}={value}; there are {' and '.join(known)}")


def _chosen(registry: Registry, subject: str | None, schema_id: int | None) -> Schema:
    if (subject is None) == (schema_id is None):
        raise ConfigError("name either a subject or a schema_id: it says which columns there are")
    return registry.latest(subject) if subject is not None else registry.schema(schema_id or 0)


def _written(registry: Registry, subject: str, text: str | None, kind: str) -> Schema:
    if text is not None:
        registry.register(subject, text, kind)
    return registry.latest(subject)
