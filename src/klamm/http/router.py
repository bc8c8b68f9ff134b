"""Routes by the segments of a path.

Segments are split before they are decoded: `/subjects/a%2Fb/versions` is about the subject `a/b`. Frameworks route on
the decoded path, where that subject cannot be told from two segments.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal

HttpEndpoint = Callable[[Any], Awaitable[HttpResponse]]
"""Takes the application's request class."""
_SEGMENTS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """An endpoint, its pattern, and how it is served."""

    endpoint: HttpEndpoint
    method: str
    pattern: str
    names: tuple[str, ...]
    """Of the values in the path."""
    public: bool
    """Served without a login."""
    quiet: bool
    """Called by machines every few seconds: logged at the level DEBUG."""
    streams: bool
    """The endpoint reads the body itself, and has no time limit."""
    tag: Any
    """For the application, such as the right that it needs."""


@dataclass(slots=True)
class _RouteNode:
    children: dict[str, _RouteNode] = field(default_factory=dict)
    wildcard: _RouteNode | None = None
    routes: dict[str, HttpRoute] = field(default_factory=dict)
    """By method."""


class PathRouter:
    """A tree of segments."""

    def __init__(self) -> None:
        self._root = _RouteNode()

    def add(
        self,
        method: str,
        pattern: str,
        endpoint: HttpEndpoint,
        *,
        public: bool = False,
        quiet: bool = False,
        streams: bool = False,
        tag: Any = None,
    ) -> None:
        """Serve a pattern such as `/subjects/{subject}/versions`."""
        node, names = self._root, []
        for segment in pattern.strip("/").split("/") if pattern != "/" else ():
            if segment.startswith("{"):
                names.append(segment.strip("{}"))
                node.wildcard = node = node.wildcard or _RouteNode()
            else:
                node = node.children.setdefault(segment, _RouteNode())
        assert method not in node.routes, f"{method} {pattern} is served twice"
        node.routes[method] = HttpRoute(endpoint, method, pattern, tuple(names), public, quiet, streams, tag)

    def match(self, method: str, segments: list[str]) -> tuple[HttpRoute, dict[str, str]]:
        """Return the route and the values of the path; 404 or 405 without one."""
        if len(segments) > _SEGMENTS_MAX:
            raise _not_found()
        node: _RouteNode | None = self._root
        values = []
        for segment in segments:
            assert node is not None
            child = node.children.get(segment)
            if child is None:
                child = node.wildcard
                values.append(unquote(segment))
            node = child
            if node is None:
                raise _not_found()
        assert node is not None
        if not node.routes:
            raise _not_found()
        # HEAD is GET without a body.
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            allowed = ", ".join(sorted(node.routes))
            raise HttpRefusal(405, f"HTTP 405 Method Not Allowed: {allowed}", (("allow", allowed),))
        return route, dict(zip(route.names, values, strict=True))

    def routes(self) -> list[HttpRoute]:
        """Return all routes, by pattern and method."""
        routes: list[HttpRoute] = []
        nodes = [self._root]
        while nodes:
            node = nodes.pop()
            routes += node.routes.values()
            nodes += [*node.children.values(), *([node.wildcard] if node.wildcard else ())]
        return sorted(routes, key=_place)


def split_path(raw_path: str) -> list[str]:
    """Return the segments of a raw path, still encoded."""
    segments = raw_path.lstrip("/").split("/")
    # A trailing slash is no empty segment; an empty one inside is a value without characters.
    if segments[-1] == "":
        segments.pop()
    return segments


def _place(route: HttpRoute) -> tuple[str, str]:
    return route.pattern, route.method


def _not_found() -> HttpRefusal:
    return HttpRefusal(404, "HTTP 404 Not Found")
