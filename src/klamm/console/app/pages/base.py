"""What all pages share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from klamm.console.app.application import ConsoleApp, ConsoleParts
    from klamm.console.app.requests import ConsoleRequest
    from klamm.console.shown_plans import PlannedChanges


class PageGroup:
    """The pages of one noun."""

    def __init__(self, app: ConsoleApp) -> None:
        self.app = app

    @property
    def parts(self) -> ConsoleParts:
        """What the pages use."""
        return self.app.parts

    def keep_plan(self, request: ConsoleRequest, about: tuple[str, ...], plan: PlannedChanges) -> str:
        """Keep a plan that is shown to this session, and return the hash that its form carries."""
        assert request.session is not None
        return self.app.plans.keep(request.session.id, (request.cluster.name, *about), plan)

    def find_plan(self, request: ConsoleRequest, about: tuple[str, ...]) -> PlannedChanges:
        """Return the plan that a form was made for; HttpRefusal 409 when it is not kept any more."""
        assert request.session is not None
        return self.app.plans.find(request.session.id, (request.cluster.name, *about), request.form("plan"))

    def path(self, request: ConsoleRequest, *segments: str) -> str:
        """Return a path below the cluster's; a name with a slash stays one segment."""
        return "/".join(["/c", *(quote(segment, safe="") for segment in (request.cluster.name, *segments))])
