"""GET .../audit: the changes that consoles made, the newest first."""

from __future__ import annotations

from klamm.console.app.application import RouteRight
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.roles import Action
from klamm.http.messages import HttpResponse


class AuditPages(PageGroup):
    """The audit log."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/audit", self.show_audit, RouteRight(Action.AUDIT))

    async def show_audit(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../audit?q=."""
        await self.parts.audit.load(request.cluster)
        search = request.text("q").lower()
        entries = [
            entry
            for entry in self.parts.audit.entries
            if entry.cluster == request.cluster.name
            and search in f"{entry.person} {entry.action} {entry.resource}".lower()
        ]
        return self.app.page(
            request,
            "audit.html",
            title="Audit",
            section="audit",
            entries=entries[:200],
            search=search,
            topic_name=self.parts.settings.audit_topic,
        )
