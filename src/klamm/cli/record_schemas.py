"""Keys and values with schemas of a registry, for `consume`, `tail` and `produce`: shown and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal
from klamm.cli.output import note
from klamm.cli.record_input import Draft
from klamm.cli.registry_address import RegistryAddress, refuse_call

if TYPE_CHECKING:
    from klamm.client.types import Record
    from klamm.registry.client import Registry, Schema

REGISTRY: Final = "registry"
_KINDS: Final = {".avsc": "AVRO", ".avro": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}


class SchemaDecoder:
    """Turns keys and values that name a schema into JSON; what cannot be decoded stays as it is, and is counted."""

    def __init__(self, address: RegistryAddress, parts: frozenset[str]) -> None:
        from klamm.registry.serializers.any_schema import RegistryDeserializer

        self._deserializer = RegistryDeserializer(address.connect(), as_json=True)
        self._parts = parts
        self._undecoded = 0
        self._reason = ""

    def decode(self, record: Record) -> Record:
        """Return a record with JSON in place of what has a schema."""
        if "key" in self._parts:
            record = record._replace(key=self._decode(record, "key"))
        if "value" in self._parts:
            record = record._replace(value=self._decode(record, "value"))
        return record

    def _decode(self, record: Record, part: str) -> bytes | None:
        from klamm.registry.client import RegistryError
        from klamm.registry.framing import BadRecord

        data: bytes | None = getattr(record, part)
        try:
            value = self._deserializer.deserialize(record.topic, data, part, record.headers or ())
        except BadRecord as error:
            self._undecoded += 1
            self._reason = f"{record.topic}-{record.partition} offset {record.offset}: {error.message}"
            return data
        except RegistryError as error:
            raise refuse_call(error) from None
        if data is None:
            return None
        # A key that is text stays bare: --key compares with it.
        if part == "key" and isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

    def report(self) -> None:
        """Write how many could not be decoded."""
        if self._undecoded:
            from klamm.model.units import pluralize

            many = pluralize(self._undecoded, "record")
            note(f"{many} not decoded, shown as they are; the last: {self._reason}")


class SchemaEncoder:
    """Turns JSON into keys or values of a schema: of a file, which is registered, or the newest of the subject."""

    def __init__(
        self, address: RegistryAddress, topic: str, part: str, file: str | None, message: str | None, *, dry_run: bool
    ) -> None:
        from klamm.model.errors import ConfigError
        from klamm.registry.client import RegistryError
        from klamm.registry.framing import BadRecord
        from klamm.registry.rules import RuleNotServed
        from klamm.registry.serializers.json_writing import JsonRecordWriter

        self._part = part
        subject = f"{topic}-{part}"
        registry = address.connect()
        try:
            schema = self._find_schema(registry, subject, file, dry_run=dry_run)
            self._writer = JsonRecordWriter(registry, schema, message)
        except ConfigError as error:
            cure = f"; write one with `klamm schema put {subject} FILE`, or name a file with --schema"
            raise CommandRefusal(f"{error}{cure}", code=exit_codes.NOT_FOUND) from None
        except RegistryError as error:
            raise refuse_call(error) from None
        except RuleNotServed as error:
            raise CommandRefusal(f"{subject}: {error.message}") from None
        except BadRecord as error:
            raise CommandRefusal(f"{file}: {error.message}".replace("schema None is", "this is")) from None
        # Without an id the schema was not registered, and nothing is written with it.
        self._is_registered = schema.id is not None

    def _find_schema(self, registry: Registry, subject: str, file: str | None, *, dry_run: bool) -> Schema:
        from klamm.registry.client import Schema

        if file is None:
            return registry.latest(subject)
        kind = _KINDS.get(Path(file).suffix.lower())
        if kind is None:
            raise click.UsageError(f"--schema {file}: the name ends with none of {', '.join(_KINDS)}")
        text = Path(file).read_text(encoding="utf-8")
        return Schema(None, None, kind, text) if dry_run else registry.register(subject, text, kind)

    def encode(self, drafts: Iterator[Draft]) -> Iterator[Draft]:
        """Return records with the part encoded; UsageError for one that does not fit."""
        from klamm.registry.framing import BadRecord

        for number, draft in enumerate(drafts, 1):
            where = draft.get("where") or f"record {number}: "
            data = draft.get(self._part)
            if data is not None:
                try:
                    encoded = self._writer.write(json.loads(data))
                except ValueError as error:
                    raise click.UsageError(f"{where}the {self._part} is no JSON: {error}") from None
                except BadRecord as error:
                    raise click.UsageError(f"{where}the {self._part} {error.message}") from None
                draft[self._part] = encoded if self._is_registered else data
            yield draft
