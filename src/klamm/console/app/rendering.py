"""Templates, the filters they use, and pages as compressed bytes."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

import jinja2

from klamm.console.core.numbers import (
    UNKNOWN,
    format_age,
    format_count,
    format_rate,
    format_share,
    format_short,
)
from klamm.http.messages import HttpResponse
from klamm.model.units import format_duration, format_size, pluralize

HTML: Final = "text/html; charset=utf-8"
_COMPRESSED_FROM: Final = 1000
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_YEAR_S: Final = 365 * 86400


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file in memory, whose URL changes with its content."""

    body: bytes
    compressed: bytes
    content_type: str
    version: str


def load_static(folder: str) -> dict[str, StaticFile]:
    """Return all static files: a request names one of these, never a path."""
    files = {}
    for name in sorted(os.listdir(folder)):
        content_type = _TYPES.get(os.path.splitext(name)[1])
        if content_type is None:
            continue
        with open(os.path.join(folder, name), "rb") as file:
            body = file.read()
        version = hashlib.sha256(body).hexdigest()[:12]
        files[name] = StaticFile(body, gzip.compress(body, 9, mtime=0), content_type, version)
    return files


class PageRenderer:
    """Renders templates; everything that is not marked safe is escaped."""

    def __init__(self) -> None:
        folder = os.path.dirname(__file__)
        self.static = load_static(os.path.join(folder, "static"))
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(os.path.join(folder, "templates")),
            autoescape=True,
            trim_blocks=True,
            lstrip_blocks=True,
            undefined=jinja2.StrictUndefined,
            auto_reload=False,
        )
        self._environment.filters.update(
            count=format_count,
            short=format_short,
            rate=format_rate,
            share=format_share,
            size=_size,
            age=format_age,
            duration=format_duration,
            clock=_clock,
            segment=_segment,
            counted=pluralize,
        )
        self._environment.globals["static_url"] = self.static_url

    def static_url(self, name: str) -> str:
        """Return the URL of a static file, which may be cached for ever."""
        return f"/static/{name}?v={self.static[name].version}"

    def render(self, template: str, values: Mapping[str, Any]) -> str:
        """Return the HTML of a template."""
        return self._environment.get_template(template).render(values)


def page_response(html: str, accepted: str, status: int = 200) -> HttpResponse:
    """Return a page, compressed where the browser takes that."""
    # Names and errors of others may have lone surrogates, which UTF-8 cannot encode: they are shown as \udc00.
    body = html.encode(errors="backslashreplace")
    if len(body) < _COMPRESSED_FROM or "gzip" not in accepted:
        return HttpResponse(status, body, HTML)
    # Level 5 costs half the time of 9 and is within two percent of its size.
    return HttpResponse(status, gzip.compress(body, 5, mtime=0), HTML, (("content-encoding", "gzip"),))


def static_response(file: StaticFile, accepted: str) -> HttpResponse:
    """Return a static file."""
    cached = ("cache-control", f"public, max-age={_YEAR_S}, immutable")
    if "gzip" in accepted:
        return HttpResponse(200, file.compressed, file.content_type, (cached, ("content-encoding", "gzip")))
    return HttpResponse(200, file.body, file.content_type, (cached,))


def _size(value: float | None) -> str:
    return UNKNOWN if value is None else format_size(value)


def _clock(ms: float | None, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """A time in UTC; the page's script rewrites it in the zone of the browser."""
    return UNKNOWN if ms is None or ms < 0 else time.strftime(form, time.gmtime(ms / 1000))


def _segment(text: object) -> str:
    """A segment of a path: a name with a slash stays one segment."""
    return quote(str(text), safe="")
