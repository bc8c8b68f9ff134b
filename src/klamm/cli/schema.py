"""`klamm schema`: subjects and schemas of a registry."""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import click

from klamm.cli import exit_codes
from klamm.cli.command_errors import CommandRefusal, refuses
from klamm.cli.command_group import Noun
from klamm.cli.confirmation import ConfirmationPlan, Consent, consent_options
from klamm.cli.output import note, output_option, show, show_one
from klamm.cli.registry_target import RegistryTarget, registry_options

_TYPES: Final = ("AVRO", "JSON", "PROTOBUF")
_SUFFIXES: Final = {".avsc": "AVRO", ".avro": "AVRO", ".proto": "PROTOBUF", ".json": "JSON"}

type_option = click.option(
    "--type",
    "schema_type",
    type=click.Choice(_TYPES, case_sensitive=False),
    help="Format of the schema.  [default: by the file's name: .avsc, .json, .proto]",
)
reference_option = click.option(
    "--reference",
    "references",
    multiple=True,
    metavar="NAME=SUBJECT:VERSION",
    help="A schema that this one uses, by the name that its text has for it.",
)
version_option = click.option(
    "--version", "number", default="latest", show_default=True, help="Version of the subject."
)


@click.group(cls=Noun)
def schema() -> None:
    """List, show, register, compare and delete schemas of a registry."""


@schema.command("ls")
@click.argument("prefix", default="", metavar="[PREFIX]")
@registry_options
@output_option
@click.option("--deleted", is_flag=True, help="Also subjects and versions that are soft-deleted.")
@refuses
def ls(*, prefix: str, target: RegistryTarget, output: str, deleted: bool) -> None:
    """List subjects: versions, newest id and type."""
    query = {"subjectPrefix": prefix if prefix.startswith(":") else f":*:{prefix}", "deleted": str(deleted).lower()}
    rows: dict[str, dict[str, Any]] = {}
    for version in target.list_schemas(query):
        row = rows.setdefault(version["subject"], {"subject": version["subject"], "versions": 0})
        row |= {"versions": row["versions"] + 1, "latest": version["version"], "id": version["id"]}
        row["type"] = version.get("schemaType", "AVRO")
    show(list(rows.values()), output, "no subjects", ("subject", "versions", "latest", "id", "type"))


@schema.command("show")
@click.argument("subject")
@version_option
@registry_options
@output_option
@refuses
def show_(*, subject: str, number: str, target: RegistryTarget, output: str) -> None:
    """Show one version of a subject: its id, references, metadata and text."""
    version = target.get_version(subject, number)
    version.setdefault("schemaType", "AVRO")

    def table() -> None:
        click.echo(f"{subject} version {version['version']}: id {version['id']}, {version['schemaType']}")
        for reference in version.get("references", ()):
            click.echo(f"uses {reference['name']} = {reference['subject']}:{reference['version']}")
        for name in ("metadata", "ruleSet"):
            if name in version:
                click.echo(f"{name} {json.dumps(version[name], ensure_ascii=False)}")
        click.echo(_pretty(version["schemaType"], version["schema"]))

    show_one(version, output, table)


@schema.command("put")
@click.argument("subject")
@click.argument("file", metavar="FILE|-")
@type_option
@reference_option
@click.option("--normalize", is_flag=True, help="Register the schema in normal form.")
@consent_options
@registry_options
@refuses
def put(
    *,
    subject: str,
    file: str,
    schema_type: str | None,
    references: tuple[str, ...],
    normalize: bool,
    consent: Consent,
    target: RegistryTarget,
) -> None:
    """Register the schema of a file as the newest version of a subject."""
    body = make_body(file, schema_type, references)
    existing = target.look_up(subject, body, normalize=normalize)
    if existing is not None:
        note(f"{subject} has this schema already: version {existing['version']}, id {existing['id']}")
        return
    plan = ConfirmationPlan()
    plan.adds(f"{body.get('schemaType', 'AVRO')} schema as the newest version of {subject}")
    if not consent.to(plan, target.without_cluster()):
        return
    answer = target.register(subject, body, normalize=normalize)
    version = answer.get("version") or (target.look_up(subject, body, normalize=normalize) or {}).get("version")
    click.echo(f"Registered {subject} version {version}, id {answer['id']}.")


@schema.command("check")
@click.argument("subject")
@click.argument("file", metavar="FILE|-")
@click.option("--version", "number", help="Compare with this version only.  [default: those that the level names]")
@type_option
@reference_option
@registry_options
@output_option
@refuses
def check(
    *,
    subject: str,
    file: str,
    number: str | None,
    schema_type: str | None,
    references: tuple[str, ...],
    target: RegistryTarget,
    output: str,
) -> None:
    """Check whether the registry would take a schema. Exits with 1 if it would not."""
    answer = target.check(subject, make_body(file, schema_type, references), number)
    level = target.level(subject)
    rows = [{"subject": subject, "level": level, "compatible": answer["is_compatible"]}]

    def table() -> None:
        if answer["is_compatible"]:
            click.echo(f"{subject}: compatible ({level})")
            return
        click.echo(f"{subject}: not compatible ({level})")
        for message in answer.get("messages", ()):
            click.echo(f"  {message}")

    show_one({**rows[0], "messages": answer.get("messages", [])}, output, table)
    if not answer["is_compatible"]:
        sys.exit(exit_codes.REFUSED)


@schema.command("diff")
@click.argument("subject")
@click.argument("file", metavar="FILE|-")
@version_option
@type_option
@reference_option
@registry_options
@output_option
@refuses
def diff(
    *,
    subject: str,
    file: str,
    number: str,
    schema_type: str | None,
    references: tuple[str, ...],
    target: RegistryTarget,
    output: str,
) -> None:
    """Show what is incompatible between a version and a file, and under which levels.

    BACKWARD: the file's schema reads data of the version. FORWARD: the version reads data of the file's schema. FULL:
    both. Computed here; nothing is registered.
    """
    from klamm.cli.schema_diff import diff_rows

    rows = diff_rows(target, subject, number, make_body(file, schema_type, references))
    show(rows, output, "compatible under every level", ("level", "rule", "path", "message"))


@schema.command("rm")
@click.argument("subject")
@click.option("--version", "number", help="Only this version.  [default: all]")
@click.option("--permanent", is_flag=True, help="Delete for good what is soft-deleted; its ids then resolve no more.")
@consent_options
@registry_options
@refuses
def rm(*, subject: str, number: str | None, permanent: bool, consent: Consent, target: RegistryTarget) -> None:
    """Delete a subject or one version of it: hidden first, for good with --permanent."""
    numbers = target.list_versions(subject, deleted=permanent) if number is None else [number]
    plan = ConfirmationPlan()
    for version in numbers:
        plan.removes(f"{subject} version {version}{' for good' if permanent else ''}")
    if not consent.to(plan, target.without_cluster()):
        return
    deleted = target.delete(subject, number, permanent=permanent)
    for version in deleted:
        click.echo(f"Deleted {subject} version {version}.")


@schema.command("export")
@click.argument("prefix", default="", metavar="[PREFIX]")
@registry_options
@click.option(
    "--deleted",
    is_flag=True,
    help="Also soft-deleted versions: without them the import lacks ids that old records have.",
)
@output_option
@refuses
def export(*, prefix: str, target: RegistryTarget, deleted: bool, output: str) -> None:
    """Print all versions of all subjects, for `klamm schema import`: one JSON object per line, ids ascending.

    Configs and modes are lines of their own behind them, without PREFIX also those of the whole registry. For records
    that may still be read by ids of deleted versions add --deleted.
    """
    from klamm.cli.schema_transfer import export_lines

    lines = export_lines(target, prefix, deleted=deleted)
    show(lines, "jsonl" if output == "table" else output)


@schema.command("import")
@click.argument("file", metavar="FILE|-")
@click.option("--keep-ids", is_flag=True, help="Keep ids and versions; the subjects must not exist yet.")
@consent_options
@registry_options
@refuses
def import_(*, file: str, keep_ids: bool, consent: Consent, target: RegistryTarget) -> None:
    """Register the versions of an export, in the order of their ids, and set its configs and modes.

    Versions that are soft-deleted in the export are registered and soft-deleted again. Without --keep-ids references
    follow the versions that they name to their new numbers.
    """
    from klamm.cli.schema_transfer import SchemaImport, parse_lines

    transfer = SchemaImport(target, parse_lines(_read(file), file), keep_ids=keep_ids)
    if not consent.to(transfer.plan(), target.without_cluster()):
        return
    transfer.run()
    click.echo(f"Imported {len(transfer.versions)} versions of {len(transfer.subjects)} subjects.")


def make_body(file: str, schema_type: str | None, references: tuple[str, ...]) -> dict[str, Any]:
    """Return the body of a request with the schema of a file."""
    kind = schema_type or next((kind for suffix, kind in _SUFFIXES.items() if file.endswith(suffix)), "AVRO")
    text = _read(file)
    if not text.strip():
        name = "the standard input" if file == "-" else file
        raise CommandRefusal(f"{name} is empty: write the schema into it")
    body: dict[str, Any] = {"schema": text}
    if kind.upper() != "AVRO":
        body["schemaType"] = kind.upper()
    if references:
        body["references"] = [_parse_reference(text) for text in references]
    return body


def _parse_reference(text: str) -> dict[str, Any]:
    name, equals, target = text.partition("=")
    # From the right: a subject of a context has colons of its own.
    subject, colon, version = target.rpartition(":")
    if not (equals and colon and name and subject and version.isdecimal()):
        raise click.UsageError(f"--reference {text}: write NAME=SUBJECT:VERSION")
    return {"name": name, "subject": subject, "version": int(version)}


def _read(file: str) -> str:
    if file == "-":
        return sys.stdin.read()
    with open(file, encoding="utf-8") as source:
        return source.read()


def _pretty(schema_type: str, text: str) -> str:
    return text if schema_type == "PROTOBUF" else json.dumps(json.loads(text), indent=2, ensure_ascii=False)
