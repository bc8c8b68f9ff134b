"""What is incompatible between two schemas, and which levels forbid it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from klamm.cli.command_errors import CommandRefusal

if TYPE_CHECKING:
    from klamm.cli.registry_target import RegistryTarget
    from klamm.registry.schemas import ParsedSchema


def diff_rows(target: RegistryTarget, subject: str, number: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row per broken rule: the levels, the rule, where, and why."""
    try:
        from klamm.registry.schemas import InvalidSchemaError, check_compatibility
    except ModuleNotFoundError as error:
        raise CommandRefusal(f"{error.name} is not installed: pip install 'klamm[registry]'") from None

    try:
        old = _parse(target, target.get_version(subject, number))
        new = _parse(target, body)
    except InvalidSchemaError as error:
        raise CommandRefusal(f"invalid schema: {error}") from None
    return [
        {
            # A FULL level forbids what either direction forbids.
            "level": f"{level},FULL",
            "rule": difference.kind,
            "path": difference.path,
            "message": difference.message,
        }
        for level in ("BACKWARD", "FORWARD")
        for difference in check_compatibility(new, old, level)
    ]


def _parse(target: RegistryTarget, fields: dict[str, Any]) -> ParsedSchema:
    from klamm.registry.client import Schema
    from klamm.registry.schemas import parse_schema

    schema = Schema.parse(fields)
    parsed: dict[str, ParsedSchema] = {}
    # The innermost first, so that each has what it refers to.
    for name, reference in target.list_references(schema).items():
        parsed[name] = parse_schema(reference.kind, reference.text, parsed, is_new=False)
    return parse_schema(schema.kind, schema.text, parsed, is_new=False)
