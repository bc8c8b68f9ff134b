"""GET .../audit: logins and the changes that consoles made, the newest first."""

from __future__ import annotations

import functools

from klamm.console.app.application import RouteRight
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.audit import AuditEntry, choose_entries
from klamm.console.core.roles import Action
from klamm.console.core.tables import parse_table_query, search_page
from klamm.http.messages import HttpResponse


class AuditPages(PageGroup):
    """The audit log."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/audit", self.show_audit, RouteRight(Action.AUDIT))

    async def show_audit(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../audit?q=&page=."""
        await self.parts.audit.load(request.cluster)
        entries = self.parts.audit.list_entries(request.cluster.name)
        if not request.may_everywhere(Action.AUDIT):
            entries = choose_entries(entries, functools.partial(request.may, Action.AUDIT))
        topic = self.parts.settings.audit_topic
        query = parse_table_query(request.query, {}, "")
        return self.app.page(
            request,
            "audit.html",
            title="Audit",
            section="audit",
            table=search_page(entries, query, _describe),
            topic_name=topic if topic and request.may(Action.VIEW, topic) else None,
        )


def _describe(entry: AuditEntry) -> str:
    """What a search looks at."""
    return f"{entry.person} {entry.action} {entry.resource} {entry.outcome}"
