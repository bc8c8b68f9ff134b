"""What all pages share."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from klamm.console.app.application import ConsoleApp, ConsoleParts
    from klamm.console.app.requests import ConsoleRequest


class PageGroup:
    """The pages of one noun."""

    def __init__(self, app: ConsoleApp) -> None:
        self.app = app

    @property
    def parts(self) -> ConsoleParts:
        """What the pages use."""
        return self.app.parts

    def path(self, request: ConsoleRequest, *segments: str) -> str:
        """Return a path below the cluster's; a name with a slash stays one segment."""
        return "/".join(["/c", *(quote(segment, safe="") for segment in (request.cluster.name, *segments))])
