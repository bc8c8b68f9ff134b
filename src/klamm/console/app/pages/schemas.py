"""GET .../schemas, .../schemas/{subject}; POST .../schemas/{subject}: check, then register a version."""

from __future__ import annotations

import functools
from typing import Any, Final

from klamm.client.errors import KafkaError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.roles import Action
from klamm.console.core.schema_texts import compare_schemas, format_references, format_schema, parse_references
from klamm.console.core.tables import parse_table_query, select_page
from klamm.console.schema_client import LEVELS, SchemaClient
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.units import pluralize

KINDS: Final = ("AVRO", "JSON", "PROTOBUF")
_COLUMNS: Final = {"name": str}


class SchemaPages(PageGroup):
    """Schemas of the cluster's registry."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/schemas", self.list_subjects, RouteRight(Action.VIEW))
        self.app.get("/c/{cluster}/new-schema", self.show_form, RouteRight(Action.SCHEMAS))
        self.app.post("/c/{cluster}/new-schema", self.register, RouteRight(Action.SCHEMAS))
        self.app.get("/c/{cluster}/schemas/{subject}", self.show_subject, RouteRight(Action.VIEW, "subject"))

    async def list_subjects(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../schemas?q=&deleted=: with `deleted` also subjects without a version that is not deleted."""
        query = parse_table_query(request.query, _COLUMNS, "name", ("deleted",))
        client, deleted = find_client(request), request.text("deleted") == "1"
        subjects = request.visible(await client.list_subjects(deleted=deleted))
        table = select_page(subjects, query, _COLUMNS, str)
        return self.app.page(
            request,
            "schemas.html",
            title="Schemas",
            section="schemas",
            table=table,
            deleted=deleted,
            level=await client.get_own_level(None),
            levels=LEVELS,
        )

    async def show_subject(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../schemas/{subject}?version=: one version, compared with the one before."""
        subject, client = request.values["subject"], find_client(request)
        live, deleted = await client.list_versions(subject), await client.list_deleted(subject)
        versions = sorted({*live, *deleted})
        if not versions:
            raise HttpRefusal(404, f"There is no subject {subject}")
        number = request.number("version", live[-1] if live else versions[-1])
        if number not in versions:
            raise HttpRefusal(404, f"{subject} has no version {number}")
        version = await client.get_version(subject, number)
        text = format_schema(version.kind, version.text)
        earlier = [other for other in versions if other < number]
        changes = []
        if earlier:
            before = await client.get_version(subject, earlier[-1])
            changes = compare_schemas(format_schema(before.kind, before.text), text)
        referrers = await client.list_referrers(subject, number)
        visible = set(request.visitor.visible(request.cluster.name, (referrer.subject for referrer in referrers)))
        topic = subject.removesuffix("-value").removesuffix("-key")
        return self.app.page(
            request,
            "schema.html",
            title=subject,
            section="schemas",
            subject=subject,
            versions=versions,
            live=live,
            deleted=deleted,
            version=version,
            text=text,
            earlier=earlier[-1] if earlier else None,
            changes=changes,
            referrers=[referrer for referrer in referrers if referrer.subject in visible],
            level=await client.get_compatibility(subject),
            own_level=await client.get_own_level(subject),
            levels=LEVELS,
            removals=_list_removals(number, live, deleted),
            topic_name=topic if topic != subject and topic in request.sample.topics else "",
        )

    async def show_form(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../new-schema?subject=: the form, with the newest version of a subject."""
        subject, client = request.text("subject"), find_client(request)
        values = {"subject": subject, "kind": "AVRO", "text": "", "references": ""}
        versions = await client.list_versions(subject) if subject else []
        if versions:
            newest = await client.get_version(subject, versions[-1])
            values |= {
                "kind": newest.kind,
                "text": format_schema(newest.kind, newest.text),
                "references": format_references(newest.references),
            }
        return self._form_page(request, values, "")

    async def register(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../new-schema: with `check` only whether it is compatible."""
        subject, kind, text = request.form("subject"), request.form("kind"), request.form_raw("text")
        lines = request.form_raw("references")
        values = {"subject": subject, "kind": kind, "text": text, "references": lines}
        if not subject or kind not in KINDS or not text.strip():
            return self._form_page(request, values, "Write a subject and a schema.", 400)
        request.require(Action.SCHEMAS, subject)
        client = find_client(request)
        try:
            references = parse_references(lines)
            answer = await client.check(subject, kind, text, references)
        except (KafkaError, ValueError) as error:
            return self._form_page(request, values, str(error), 400)
        if not answer.compatible:
            return self._form_page(request, values, "Not compatible with the newest version.", 409, answer.messages)
        if request.form("check"):
            return self._form_page(request, values, "", checked=True)
        work = functools.partial(client.register, subject, kind, text, references)
        done = f"Registered a version of {subject}."
        detail = {"type": kind, **({"references": lines} if references else {})}
        if not await self.app.change(request, "register schema", subject, work, done=done, detail=detail):
            return self._form_page(request, values, "", 409)
        return redirect(self.path(request, "schemas", subject))

    def _form_page(
        self,
        request: ConsoleRequest,
        values: dict[str, Any],
        failed: str,
        status: int = 200,
        reasons: tuple[str, ...] = (),
        *,
        checked: bool = False,
    ) -> HttpResponse:
        return self.app.page(
            request,
            "schema_new.html",
            status,
            title="New schema",
            section="schemas",
            values=values,
            failed=failed,
            reasons=reasons,
            checked=checked,
            kinds=KINDS,
        )


def _list_removals(number: int, live: list[int], deleted: list[int]) -> list[tuple[int | None, str, bool, str]]:
    """Return what may be deleted: version, name of the change, whether it is for good, and what it does."""
    kept = "Records that name the schema are still read, and registering it again brings it back."
    lost = "Records that name the schema cannot be read any more."
    removals: list[tuple[int | None, str, bool, str]] = []
    if number in live:
        removals.append(
            (number, f"Delete version {number}", False, f"Clients do not find the version any more. {kept}")
        )
    else:
        removals.append((number, f"Delete version {number} for good", True, lost))
    if live:
        about = f"Delete {pluralize(len(live), 'version')}. {kept}"
        removals.append((None, "Delete the subject", False, about))
    else:
        removals.append((None, "Delete the subject for good", True, f"{pluralize(len(deleted), 'version')}. {lost}"))
    return removals


def find_client(request: ConsoleRequest) -> SchemaClient:
    """Return the client of the cluster's registry; HttpRefusal 404 when it has none."""
    client = request.cluster.schemas
    if client is None:
        raise HttpRefusal(404, f"{request.cluster.name} has no registry here: start the console with --registry URL")
    return client
