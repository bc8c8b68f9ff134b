"""Versions and settings of a registry as lines, for `klamm schema export` and `import`."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any, Final

from klamm.cli.command_errors import CommandRefusal
from klamm.cli.confirmation import ConfirmationPlan
from klamm.cli.output import note
from klamm.cli.registry_address import RegistryRefused
from klamm.cli.registry_target import RegistryTarget

ExportLine = dict[str, Any]

_CONTENT: Final = ("schema", "schemaType", "references", "metadata", "ruleSet")
_SETTINGS: Final = {"config": dict, "mode": str}
_IMPORT: Final = "IMPORT"
_PLAIN_MODE: Final = "READWRITE"
_CONNECTIONS: Final = 8
"""A large registry has as many configs and modes to read as subjects."""


# Export


def export_lines(target: RegistryTarget, prefix: str, *, deleted: bool) -> list[ExportLine]:
    """Return versions in the order of their ids, and behind them configs and modes."""
    query = {"subjectPrefix": prefix if prefix.startswith(":") else f":*:{prefix}"}
    versions = target.list_schemas({**query, "deleted": "false"})
    if deleted:
        # Older registries do not say which versions are deleted: those that the other list lacks.
        live = {(version["subject"], version["version"]) for version in versions}
        versions = target.list_schemas({**query, "deleted": "true"})
        for version in versions:
            if (version["subject"], version["version"]) not in live:
                version["deleted"] = True
    scopes = {version["subject"] for version in versions}
    scopes |= {f":{_context_of(subject)}:" for subject in scopes if _context_of(subject)}
    if not prefix:
        scopes.add("")
    return [*sorted(versions, key=_order), *_export_settings(target, sorted(scopes))]


def _export_settings(target: RegistryTarget, scopes: Sequence[str]) -> list[ExportLine]:
    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        configs = list(pool.map(_read_of(target.own_config), scopes))
        modes = list(pool.map(_read_of(target.own_mode), scopes))
    hidden = configs.count(_FORBIDDEN)
    if hidden:
        note(f"the settings of {hidden} subjects and contexts are not exported: reading them is not allowed")
    lines: list[ExportLine] = [
        {"subject": scope, "config": config}
        for scope, config in zip(scopes, configs, strict=True)
        if config not in (None, _FORBIDDEN)
    ]
    # The mode of a registry that is being filled is not one to take over, and the usual one goes without saying:
    # Karapace answers it for all subjects.
    is_usual = _read_of(target.own_mode)("") == _PLAIN_MODE
    for scope, mode in zip(scopes, modes, strict=True):
        says_nothing = mode == _PLAIN_MODE and is_usual and not _context_of(scope)
        if mode not in (None, _FORBIDDEN, _IMPORT) and not says_nothing:
            lines.append({"subject": scope, "mode": mode})
    return lines


_FORBIDDEN: Final = "forbidden"


def _read_of(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def read_allowed(scope: str) -> Any:
        try:
            return read(scope)
        except RegistryRefused as error:
            if error.status == HTTPStatus.FORBIDDEN:
                return _FORBIDDEN
            raise

    return read_allowed


# Lines


def parse_lines(text: str, file: str) -> list[ExportLine]:
    """Parse an export; CommandRefusal for a line that is neither a version nor a setting."""
    try:
        lines = (
            json.loads(text)
            if text.lstrip().startswith("[")
            else [json.loads(line) for line in text.splitlines() if line]
        )
        for line in lines:
            if not isinstance(line["subject"], str):
                raise TypeError(line["subject"])
            if not _is_setting(line):
                line["version"], line["id"], line["schema"]
    except (ValueError, KeyError, TypeError):
        raise CommandRefusal(
            f"{file} is no export of schemas: each line is an object with subject, version, id and schema, "
            "or with subject and config or mode"
        ) from None
    return list(lines)


def _is_setting(line: ExportLine) -> bool:
    return any(isinstance(line.get(name), kind) for name, kind in _SETTINGS.items())


def _order(version: ExportLine) -> tuple[int, str, int]:
    return version["id"], version["subject"], version["version"]


def _context_of(subject: str) -> str:
    """Return the context of a subject such as `:.team:orders`; empty for the default one."""
    return subject[1:].partition(":")[0] if subject.startswith(":.") else ""


def _target_of(reference: ExportLine, context: str) -> tuple[str, int]:
    """Return subject and version of a reference; a name without a context is in that of the schema that has it."""
    subject = str(reference["subject"])
    is_named = not context or subject.startswith(":.")
    return subject if is_named else f":{context}:{subject}", int(reference["version"])


def order_versions(lines: Iterable[ExportLine]) -> list[ExportLine]:
    """Return versions so that those of a subject ascend, and a schema is behind those that it refers to."""
    waiting: dict[str, list[ExportLine]] = defaultdict(list)
    for line in sorted(lines, key=_order):
        waiting[line["subject"]].append(line)
    for versions in waiting.values():
        versions.sort(key=lambda line: -int(line["version"]))  # taken from the end
    ordered: list[ExportLine] = []

    def take(subject: str, up_to: int) -> None:
        versions = waiting.get(subject, [])
        while versions and versions[-1]["version"] <= up_to:
            line = versions.pop()
            for reference in line.get("references") or ():
                take(*_target_of(reference, _context_of(subject)))
            ordered.append(line)

    for line in sorted(lines, key=_order):
        take(line["subject"], line["version"])
    return ordered


# Import


class SchemaImport:
    """Registers the versions of an export, and sets what it says of configs and modes."""

    def __init__(self, target: RegistryTarget, lines: Sequence[ExportLine], *, keep_ids: bool) -> None:
        self._target = target
        self._keep_ids = keep_ids
        self.versions = order_versions([line for line in lines if not _is_setting(line)])
        self.subjects = list(dict.fromkeys(version["subject"] for version in self.versions))
        self._configs = {line["subject"]: line["config"] for line in lines if isinstance(line.get("config"), dict)}
        self._modes = {line["subject"]: line["mode"] for line in lines if isinstance(line.get("mode"), str)}
        self._numbers: dict[tuple[str, int], int] = {}
        """The version that a version of the export has got."""
        self._to_delete: dict[tuple[str, int], int] = {}
        """By subject and id: versions that are soft-deleted in the export."""
        self._modes_before: dict[str, str | None] = {}
        self._configs_before: dict[str, ExportLine | None] = {}

    def plan(self) -> ConfirmationPlan:
        """Return what would change."""
        plan = ConfirmationPlan()
        for version in self.versions:
            id_text = f" id {version['id']}" if self._keep_ids else ""
            deleted = ", soft-deleted" if version.get("deleted") else ""
            plan.adds(f"{version['subject']} version {version['version']}{id_text}{deleted}")
        for scope, config in self._configs.items():
            before = self._target.own_config(scope)
            if any((before or {}).get(name) != value for name, value in config.items()):
                plan.changes(f"config of {_name(scope)}", _as_text(before), _as_text(config))
        for scope, mode in self._modes.items():
            before_mode = self._target.own_mode(scope)
            if before_mode != mode:
                plan.changes(f"mode of {_name(scope)}", before_mode, mode)
        return plan

    def run(self) -> None:
        """Import everything; what was changed for the time of the import is restored, also after a refusal."""
        try:
            for subject in self.subjects if self._keep_ids else ():
                self._begin_import(subject)
            for version in self.versions:
                self._import_version(version)
            for subject, number in reversed([(key[0], number) for key, number in self._to_delete.items()]):
                self._target.delete(subject, str(number), permanent=False)
        except BaseException:
            for reason in self._restore():
                note(reason)
            raise
        reasons = self._restore()
        # After the versions: they need not be compatible by the levels of today, and read-only subjects take none.
        for scope, config in self._configs.items():
            self._target.put_config(scope, config)
        for scope, mode in self._modes.items():
            self._target.put_mode(scope, mode)
        if reasons:
            raise CommandRefusal("; ".join(reasons))

    def _begin_import(self, subject: str) -> None:
        # Before the mode is set: an answer that is lost leaves a mode, too.
        self._modes_before[subject] = self._target.own_mode(subject)
        self._target.put_mode(subject, _IMPORT)

    def _import_version(self, version: ExportLine) -> None:
        subject, schema_id = version["subject"], version["id"]
        body: ExportLine = {name: version[name] for name in _CONTENT if name in version}
        if self._keep_ids:
            body |= {"id": schema_id, "version": version["version"]}
        elif "references" in body:
            body["references"] = [self._renumber(reference, subject) for reference in body["references"]]
        # The same schema may be there twice, deleted first: registered while that one lives, it would be the same.
        before = self._to_delete.pop((subject, schema_id), None)
        if before is not None:
            self._target.delete(subject, str(before), permanent=False)
        elif version.get("deleted") and not self._keep_ids:
            # What another import has left is neither repeated nor deleted.
            existing = self._target.look_up(subject, body, normalize=False, deleted=True)
            if existing is not None:
                self._numbers[subject, version["version"]] = existing["version"]
                return
        number = self._register(subject, body)
        self._numbers[subject, version["version"]] = number
        if version.get("deleted"):
            self._to_delete[subject, schema_id] = number

    def _renumber(self, reference: ExportLine, subject: str) -> ExportLine:
        """Return a reference with the number that its version has got."""
        number = self._numbers.get(_target_of(reference, _context_of(subject)))
        return reference if number is None else {**reference, "version": number}

    def _register(self, subject: str, body: ExportLine) -> int:
        try:
            answer = self._target.register(subject, body)
        except RegistryRefused as error:
            if error.status != HTTPStatus.CONFLICT or not self._lower_level(subject):
                raise
            answer = self._target.register(subject, body)
        if "version" not in answer:  # older registries answer the id only
            answer = self._target.look_up(subject, body, normalize=False) or {}
        return int(answer.get("version") or body.get("version") or 0)

    def _lower_level(self, subject: str) -> bool:
        """Set the level NONE for the time of the import, if all versions that the subject has are of the export.

        They were compatible by the levels of their time, which an export does not have.
        """
        imported = {number for (name, _), number in self._numbers.items() if name == subject}
        if subject in self._configs_before or not imported:
            return False
        if not imported.issuperset(self._target.list_versions(subject, deleted=False)):
            return False
        self._configs_before[subject] = self._target.own_config(subject)
        self._target.put_config(subject, {"compatibilityLevel": "NONE"})
        return True

    def _restore(self) -> list[str]:
        """Restore modes and levels; return the reasons why some could not be."""
        reasons = []
        for subject, mode in self._modes_before.items():
            try:
                if mode is not None:
                    self._target.put_mode(subject, mode)
                elif self._target.own_mode(subject) is not None:
                    self._target.delete_mode(subject)
            except CommandRefusal as error:
                reasons.append(f"{subject} keeps the mode {_IMPORT}: {error.message}")
        for subject, config in self._configs_before.items():
            try:
                if self._target.own_config(subject) is not None:
                    self._target.delete_config(subject)
                if config is not None:
                    self._target.put_config(subject, config)
            except CommandRefusal as error:
                reasons.append(f"{subject} keeps the level NONE: {error.message}")
        return reasons


def _name(scope: str) -> str:
    return scope or "the whole registry"


def _as_text(config: ExportLine | None) -> str | None:
    return None if config is None else json.dumps(config, ensure_ascii=False)
