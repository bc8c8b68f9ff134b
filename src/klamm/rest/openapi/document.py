"""Puts routes, operations and schemas together."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import klamm
from klamm.http.router import HttpRoute
from klamm.rest.core.media_types import JSON, V2_FORMATS, V2_JSON
from klamm.rest.openapi.operations import OPERATIONS, DescribedOperation
from klamm.rest.openapi.schemas import SCHEMAS, TEXT, ref

_RECORDS: Final = tuple(embedded.media_type for embedded in V2_FORMATS)
_STREAM_TEXT: Final = (
    "JSON objects that follow one another, also without an end (Transfer-Encoding: chunked); the answers follow one"
    " another in the same order, one per line, as records are acknowledged. The status is 200 when single records fail:"
    " error_code says so."
)
_INTRODUCTION: Final = (
    "v2 produces and consumes records, v3 administers the cluster and produces. The paths of v3 are also served below"
    " /kafka/v3."
)


def describe(routes: Iterable[HttpRoute]) -> bytes:
    """Return the description of the routes that have one, as JSON."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = OPERATIONS.get((route.method, route.pattern))
        if operation is not None:
            paths.setdefault(route.pattern, {})[route.method.lower()] = _describe(route, operation)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Klamm REST proxy", "version": klamm.__version__, "description": _INTRODUCTION},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }
    return json.dumps(document, separators=(",", ":")).encode()


def _describe(route: HttpRoute, operation: DescribedOperation) -> dict[str, Any]:
    is_v3 = route.pattern.startswith("/v3")
    documented = (route.endpoint.__doc__ or "").strip()
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in route.names]
    parameters += [
        {"name": name, "in": "query", "required": needed, "schema": schema} for name, schema, needed in operation.query
    ]
    name = f"{route.endpoint.__module__.rpartition('.')[2]}.{route.endpoint.__name__}"
    described: dict[str, Any] = {
        "operationId": f"{name}.{_suffix(route)}".rstrip("."),
        "summary": documented,
        "tags": [str(route.tag)],
        "parameters": parameters,
        "responses": {
            str(operation.status): _answer(operation, is_v3=is_v3),
            "4XX": _content("An error of the request.", "Error", (JSON, V2_JSON)),
            "5XX": _content("An error of the cluster or the proxy.", "Error", (JSON, V2_JSON)),
        },
    }
    if route.pattern.endswith("/topics") and route.method == "POST":
        described["responses"]["200"] = _content("What would be created, with validate_only.", "Topic", (JSON,))
    if operation.streams:
        described["description"] = _STREAM_TEXT
    if operation.body is not None:
        media_types: tuple[str, ...] = (JSON,) if is_v3 else (V2_JSON, JSON)
        if operation.body == "ProduceRequestV2":
            media_types = _RECORDS
        needed = operation.body not in ("CommitRequest", "InstanceRequest")
        content = {media_type: {"schema": ref(operation.body)} for media_type in media_types}
        described["requestBody"] = {"required": needed, "content": content}
    return described


def _suffix(route: HttpRoute) -> str:
    """Return what tells routes of one endpoint apart."""
    return ".".join(name for name in route.names if name not in ("cluster_id", "instance"))


def _answer(operation: DescribedOperation, *, is_v3: bool) -> dict[str, Any]:
    if operation.answer is None:
        return {"description": "Done."}
    if is_v3:
        media_types: tuple[str, ...] = (JSON,)
    else:
        media_types = _RECORDS if operation.answer == "Records" else (V2_JSON, JSON)
    return _content("The answer.", operation.answer, media_types)


def _content(description: str, name: str, media_types: Iterable[str]) -> dict[str, Any]:
    return {
        "description": description,
        "content": {media_type: {"schema": ref(name)} for media_type in media_types},
    }
