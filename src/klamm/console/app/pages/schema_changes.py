"""POST .../schemas/{subject}/level and .../delete, and .../schema-level: compatibility, and deletions."""

from __future__ import annotations

import functools
from typing import Final

from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.pages.schemas import find_client
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.roles import Action
from klamm.console.schema_client import LEVELS
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal

_VERSION_DIGITS_MAX: Final = 9


class SchemaChangePages(PageGroup):
    """Changes of what the registry has; new versions are registered by `SchemaPages`."""

    def add_routes(self) -> None:
        """Serve these forms."""
        right = RouteRight(Action.SCHEMAS, "subject")
        self.app.post("/c/{cluster}/schema-level", self.set_level, RouteRight(Action.SCHEMAS, everywhere=True))
        self.app.post("/c/{cluster}/schemas/{subject}/level", self.set_subject_level, right)
        self.app.post("/c/{cluster}/schemas/{subject}/delete", self.delete, right)

    async def set_level(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../schema-level: the level of subjects without one of their own."""
        level = _parse_level(request)
        client = find_client(request)
        before = await client.get_own_level(None)
        work = functools.partial(client.set_level, None, level)
        done = f"Subjects without a level of their own are {level} now."
        detail = {"before": before, "level": level}
        await self.app.change(request, "change compatibility", "all subjects", work, done=done, detail=detail)
        return redirect(self.path(request, "schemas"))

    async def set_subject_level(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../schemas/{subject}/level: a level, or with none that of the registry."""
        subject, client = request.values["subject"], find_client(request)
        level = _parse_level(request) if request.form("level") else None
        before = await client.get_own_level(subject)
        work = functools.partial(client.set_level, subject, level)
        done = f"{subject} has the level of the registry now." if level is None else f"{subject} is {level} now."
        detail = {"before": before, "level": level}
        await self.app.change(request, "change compatibility", subject, work, done=done, detail=detail)
        return redirect(self.path(request, "schemas", subject))

    async def delete(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../schemas/{subject}/delete: a version or the subject; for good what was deleted before."""
        subject, client = request.values["subject"], find_client(request)
        if request.form("name") != subject:
            raise HttpRefusal(400, f"Write {subject} to confirm; nothing was changed")
        version = _parse_version(request.form("version"))
        permanent = bool(request.form("permanent"))
        work = functools.partial(client.delete, subject, version, permanent=permanent)
        what = subject if version is None else f"version {version} of {subject}"
        action = "delete schema for good" if permanent else "delete schema"
        done = f"Deleted {what}{' for good' if permanent else ''}."
        detail = {"version": version}
        await self.app.change(request, action, subject, work, done=done, detail=detail)
        # Without versions, deleted ones included, the subject has no page any more.
        is_left = await client.list_versions(subject) or await client.list_deleted(subject)
        return redirect(self.path(request, "schemas", subject) if is_left else self.path(request, "schemas"))


def _parse_level(request: ConsoleRequest) -> str:
    level = request.form("level")
    if level not in LEVELS:
        raise HttpRefusal(400, f"There is no compatibility level {level[:40]!r}; there are {', '.join(LEVELS)}")
    return level


def _parse_version(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _VERSION_DIGITS_MAX):
        raise HttpRefusal(400, f"{text[:40]!r} is no version")
    return int(text)
