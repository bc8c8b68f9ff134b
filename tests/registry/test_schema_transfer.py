"""`klamm schema export` and `import`: what moves between registries, and what a refusal leaves behind."""

import json

import pytest
from click.testing import CliRunner

from klamm.cli.command_errors import CommandRefusal
from klamm.cli.main import cli
from klamm.cli.registry_address import RegistryAddress, RegistryLogin
from klamm.cli.registry_target import RegistryTarget
from klamm.cli.schema_transfer import export_lines
from klamm.registry.client import UnknownSchema
from klamm.telemetry.log import Level, configure
from klamm.testing import unique

from .small_store import record

A, B, C = record("R", a=False), record("R", a=False, b=True), record("R", a=False, c=False)


@pytest.fixture
def run(registry):
    def call(*args, code=0, given=None):
        result = CliRunner().invoke(cli, ["schema", *args, "--registry", registry.url], input=given)
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.output

    # The registry runs in this process: its access log would come between the lines of the command.
    configure(Level.WARNING)
    yield call
    configure()


@pytest.fixture
def contexts():
    return f".{unique('from')}", f".{unique('to')}"


def rows(output):
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def move(exported, contexts):
    return exported.replace(*contexts)


def settings_of(registry, subject):
    return [registry.request("GET", f"/{kind}/{subject}")[1] for kind in ("config", "mode")]


def versions_of(registry, subject, query=""):
    return registry.get(f"/subjects/{subject}/versions{query}")


def subject_in(context, name="s"):
    return f":{context}:{name}"


def export_line(subject, version, schema_id, schema, **more):
    return json.dumps({"subject": subject, "version": version, "id": schema_id, "schema": schema, **more}) + "\n"


# Modes


def test_a_refused_import_leaves_no_subject_in_import_mode(run, registry):
    fresh, taken = unique("a"), unique("b")
    registry.register(taken, A)
    lines = export_line(fresh, 1, 9001, A) + export_line(taken, 1, 9002, B)
    assert "existing subjects" in run("import", "-", "--keep-ids", given=lines, code=1)
    assert settings_of(registry, fresh)[1]["error_code"] == 40409
    assert settings_of(registry, taken)[1]["error_code"] == 40409


def test_an_import_restores_the_mode_that_a_subject_had(run, registry):
    subject = unique("s")
    registry.request("PUT", f"/mode/{subject}", {"mode": "READONLY"})
    run("import", "-", "--keep-ids", given=export_line(subject, 3, 9101, A))
    assert settings_of(registry, subject)[1] == {"mode": "READONLY"}
    assert registry.get(f"/subjects/{subject}/versions/3")["id"] == 9101


def test_one_mode_that_cannot_be_restored_leaves_the_others_restored(run, registry, monkeypatch):
    first, second = unique("a"), unique("b")
    delete_mode = RegistryTarget.delete_mode

    def fail_for_first(target, subject):
        if subject == first:
            raise CommandRefusal("the registry is gone")
        delete_mode(target, subject)

    monkeypatch.setattr(RegistryTarget, "delete_mode", fail_for_first)
    lines = export_line(first, 1, 9201, A) + export_line(second, 1, 9202, B)
    refused = run("import", "-", "--keep-ids", given=lines, code=1)
    assert f"{first} keeps the mode IMPORT" in refused
    assert "the registry is gone" in refused
    assert settings_of(registry, second)[1]["error_code"] == 40409


# Deleted versions


@pytest.mark.parametrize("options", [["--keep-ids"], []])
def test_soft_deleted_versions_stay_deleted(run, registry, contexts, options):
    source, target = map(subject_in, contexts)
    registry.register(source, A)
    registry.register(source, B)
    registry.request("DELETE", f"/subjects/{source}/versions/1")
    assert len(rows(run("export", source))) == 1
    exported = run("export", source, "--deleted")
    assert [row.get("deleted", False) for row in rows(exported)] == [True, False]
    plan = run("import", "-", "--dry-run", *options, given=move(exported, contexts))
    assert f"{target} version 1" in plan
    assert "soft-deleted" in plan
    run("import", "-", *options, given=move(exported, contexts))
    assert versions_of(registry, target) == [2]
    assert versions_of(registry, target, "?deleted=true") == [1, 2]
    # The id of the deleted version still resolves: old records carry it.
    assert registry.get(f"/contexts/{contexts[1]}/schemas/ids/1")["schema"] == A


def test_a_deleted_version_that_another_one_repeats(run, registry):
    subject = unique("s")
    lines = (
        export_line(subject, 1, 9301, A, deleted=True)
        + export_line(subject, 2, 9302, B)
        + export_line(subject, 3, 9301, A)
    )
    run("import", "-", given=lines)
    live = versions_of(registry, subject)
    assert [registry.get(f"/subjects/{subject}/versions/{number}")["schema"] for number in live] == [B, A]


# Settings


def test_configs_and_modes_move_along(run, registry, contexts):
    source, target = map(subject_in, contexts)
    registry.register(source, A)
    config = {"compatibilityLevel": "FULL", "normalize": True, "defaultMetadata": {"properties": {"owner": "ada"}}}
    changed = {"compatibility": "FULL", "normalize": True, "defaultMetadata": {"properties": {"owner": "ada"}}}
    registry.request("PUT", f"/config/{source}", changed)
    registry.request("PUT", f"/config/{subject_in(contexts[0], '')}", {"compatibility": "FORWARD"})
    registry.request("PUT", f"/mode/{source}", {"mode": "READONLY"})
    exported = run("export", f":{contexts[0]}:")
    assert [row for row in rows(exported) if "schema" not in row] == [
        {"subject": subject_in(contexts[0], ""), "config": {"compatibilityLevel": "FORWARD"}},
        {"subject": source, "config": config},
        {"subject": source, "mode": "READONLY"},
    ]
    plan = run("import", "-", "--dry-run", given=move(exported, contexts))
    assert f"~ mode of {target}: unset -> READONLY" in plan
    assert f"~ config of {target}: unset -> " in plan
    run("import", "-", given=move(exported, contexts))
    assert settings_of(registry, target) == [config, {"mode": "READONLY"}]
    assert registry.get(f"/config/{subject_in(contexts[1], '')}") == {"compatibilityLevel": "FORWARD"}
    # Once more nothing differs but the versions, which are there already.
    assert "~" not in run("import", "-", "--dry-run", given=move(exported, contexts))


def test_the_settings_of_the_whole_registry_are_exported(run):
    assert {"subject": "", "config": {"compatibilityLevel": "BACKWARD"}} in rows(run("export"))
    assert "~" not in run("import", "-", "--dry-run", given='{"subject": "", "config": {}}\n')


def test_a_history_of_level_none_is_imported_without_its_ids(run, registry, contexts):
    source, target = map(subject_in, contexts)
    registry.request("PUT", f"/config/{source}", {"compatibility": "NONE"})
    registry.register(source, A)
    registry.register(source, C)
    registry.request("PUT", f"/config/{source}", {"compatibility": "FULL"})
    exported = run("export", source)
    run("import", "-", given=move(exported, contexts))
    assert versions_of(registry, target) == [1, 2]
    assert registry.get(f"/config/{target}") == {"compatibilityLevel": "FULL"}


def test_a_level_that_was_lowered_for_an_import_is_restored(run, registry):
    plain, own = unique("a"), unique("b")
    registry.request("PUT", f"/config/{own}", {"compatibility": "FORWARD_TRANSITIVE", "normalize": False})
    before = registry.get(f"/config/{own}")
    lines = "".join(
        export_line(subject, number, 9400 + number, text)
        for subject in (plain, own)
        for number, text in ((1, C), (2, A), (3, C.replace('"c"', '"d"')))
    )
    run("import", "-", given=lines)
    assert versions_of(registry, plain) == versions_of(registry, own) == [1, 2, 3]
    assert registry.request("GET", f"/config/{plain}")[1]["error_code"] == 40408
    assert registry.get(f"/config/{own}") == before


def test_the_level_of_a_subject_that_has_versions_is_kept(run, registry):
    subject = unique("s")
    registry.register(subject, A)
    assert "409" in run("import", "-", given=export_line(subject, 2, 9502, C), code=1)
    assert versions_of(registry, subject) == [1]
    assert registry.request("GET", f"/config/{subject}")[1]["error_code"] == 40408


# References


def test_references_follow_versions_that_get_other_numbers(run, registry, contexts):
    inner, outer = (subject_in(contexts[0], name) for name in ("inner", "outer"))
    registry.register(inner, A)
    registry.register(inner, B)
    registry.request("DELETE", f"/subjects/{inner}/versions/1")
    registry.request("DELETE", f"/subjects/{inner}/versions/1?permanent=true")
    reference = {"name": "R", "subject": "inner", "version": 2}
    registry.register(outer, '{"type":"array","items":"R"}', references=[reference])
    run("import", "-", given=move(run("export", f":{contexts[0]}:"), contexts))
    moved = registry.get(f"/subjects/{subject_in(contexts[1], 'outer')}/versions/1")
    assert moved["references"] == [{**reference, "version": 1}]


def test_lines_that_are_neither_versions_nor_settings(run):
    for line in ('{"subject": "s"}', '{"config": {}}', '{"subject": "s", "mode": 5}', '{"subject": 1, "config": {}}'):
        assert "no export of schemas" in run("import", "-", given=line, code=1)


class PagelessRegistry:
    """Answers as Karapace: all versions for any page and prefix, and the mode of the registry for each subject."""

    def __init__(self, count):
        self.versions = [
            {"subject": f"s{number:04d}", "version": 1, "id": number + 1, "schema": A} for number in range(count)
        ]

    def call(self, method, path, body=None, **query):
        if path == "/schemas":
            return [dict(version) for version in self.versions]
        if path.startswith("/mode"):
            return {"mode": "READWRITE"}
        if path == "/config":
            return {"compatibilityLevel": "BACKWARD"}
        raise UnknownSchema("not found")


def pageless_target(count):
    target = RegistryTarget(RegistryAddress("http://127.0.0.1:1", RegistryLogin()))
    vars(target)["_client"] = PagelessRegistry(count)
    return target


@pytest.mark.parametrize("count", [999, 1000, 1001])
def test_a_registry_without_pages_is_listed_once(count):
    assert len(pageless_target(count).list_schemas({"subjectPrefix": ":*:"})) == count


def test_a_registry_without_prefixes_is_filtered():
    rows = pageless_target(30).list_schemas({"subjectPrefix": ":*:s000"})
    assert [row["subject"] for row in rows] == [f"s000{number}" for number in range(10)]


def test_modes_that_say_what_holds_anyway_are_not_exported():
    lines = export_lines(pageless_target(2), "", deleted=False)
    assert [line for line in lines if "schema" not in line] == [
        {"subject": "", "config": {"compatibilityLevel": "BACKWARD"}}
    ]
