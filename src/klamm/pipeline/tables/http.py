"""Tables over HTTP: queries as JSON, rows by key, and changes as server-sent events. A Starlette application.

    POST /query                 {"sql": "...", "parameters": [...], "max_rows": n}
    GET  /query?sql=...         the same; with watch=1 changes as server-sent events until the client leaves
    GET  /tables                what is served, with lag and bad records
    GET  /tables/NAME/KEY       one row
    GET  /health                200 when all tables are caught up and followed, otherwise 503

Reading needs no authorization: listen on a local address, or behind a proxy that checks it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from klamm.pipeline.tables.live_tables import LiveTables
from klamm.pipeline.tables.plain_values import to_plain, unique_names
from klamm.pipeline.tables.queries import QueryError, RowAnswer

_BODY_BYTES_MAX: Final = 1 << 20
_KEEP_ALIVE_S: Final = 15.0
WATCHES_MAX: Final = 64
"""Push queries at a time: each runs its query again after every change."""


class TableEndpoints:
    """The handlers of one set of tables."""

    def __init__(self, tables: LiveTables, *, queries_max: int = 8) -> None:
        self._tables = tables
        self._query_threads = CapacityLimiter(queries_max)
        self._watch_threads = CapacityLimiter(WATCHES_MAX)
        self._watches = 0

    def routes(self) -> list[Route]:
        """Return the routes of the application."""
        return [
            Route("/query", self.post_query, methods=["POST"]),
            Route("/query", self.get_query, methods=["GET"]),
            Route("/tables", self.list_tables, methods=["GET"]),
            Route("/tables/{name}/{key:path}", self.get_row, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]

    async def post_query(self, request: Request) -> Response:
        """Answer a query of the body."""
        body = await _read_body(request)
        sql, parameters = body.get("sql"), body.get("parameters") or []
        if not isinstance(sql, str) or not isinstance(parameters, list | dict):
            raise HTTPException(400, 'write {"sql": "SELECT ...", "parameters": [...]}')
        return await self._answer(sql, parameters, _row_limit(body.get("max_rows")))

    async def get_query(self, request: Request) -> Response:
        """Answer a query of the address, or push its changes."""
        sql = request.query_params.get("sql")
        if not sql:
            raise HTTPException(400, "write /query?sql=SELECT ...")
        if request.query_params.get("watch", "0").lower() in ("1", "true", "yes"):
            return await self._push(sql, request)
        return await self._answer(sql, [], _row_limit(request.query_params.get("max_rows")))

    async def _answer(self, sql: str, parameters: Any, row_limit: int | None) -> Response:
        def run() -> RowAnswer:
            return self._tables.answer_rows(sql, parameters, max_rows=row_limit)

        try:
            answer = await to_thread.run_sync(run, limiter=self._query_threads)
        except QueryError as error:
            return _error(error)
        names = unique_names(list(answer.names))
        rows = [dict(zip(names, map(to_plain, row), strict=True)) for row in answer.rows]
        return JSONResponse({"columns": answer.columns, "rows": rows, "truncated": answer.truncated})

    async def _push(self, sql: str, request: Request) -> Response:
        if self._watches >= WATCHES_MAX:
            raise HTTPException(503, f"{WATCHES_MAX} push queries run already")
        self._watches += 1
        try:
            watch = await to_thread.run_sync(self._tables.open_watch, sql, limiter=self._query_threads)
        except QueryError as error:
            self._watches -= 1
            return _error(error)
        return StreamingResponse(self._events(watch, request), media_type="text/event-stream")

    async def _events(self, watch: Any, request: Request) -> AsyncIterator[str]:
        try:
            while not await request.is_disconnected():
                try:
                    changes = await to_thread.run_sync(watch.next_changes, _KEEP_ALIVE_S, limiter=self._watch_threads)
                except QueryError as error:
                    yield f"event: error\ndata: {json.dumps({'error': str(error)})}\n\n"
                    return
                if changes is None:
                    return
                for change in changes:
                    row = dict(zip(watch.names, map(to_plain, change.row), strict=True))
                    yield f"data: {json.dumps({'change': change.sign, 'row': row})}\n\n"
                if not changes:
                    yield ": nothing changed\n\n"  # a proxy closes a connection without traffic
        finally:
            self._watches -= 1
            watch.close()

    async def list_tables(self, request: Request) -> Response:
        """List the tables."""
        del request
        return JSONResponse(await to_thread.run_sync(self._tables.status, limiter=self._query_threads))

    async def get_row(self, request: Request) -> Response:
        """Return the row of a key."""
        name, key = request.path_params["name"], request.path_params["key"]

        def run() -> Any:
            return self._tables.get(name, key)

        try:
            row = await to_thread.run_sync(run, limiter=self._query_threads)
        except QueryError as error:
            return _error(error)
        if row is None:
            return JSONResponse({"error": f"{name} has no row {key}"}, 404)
        return JSONResponse({column: to_plain(value) for column, value in row.items()})

    async def health(self, request: Request) -> Response:
        """Tell whether answers are current."""
        del request
        error = self._tables.error
        state = "failing" if error is not None else "ready" if self._tables.ready else "catching up"
        body = {"state": state, "error": None if error is None else str(error)}
        return JSONResponse(body, 200 if state == "ready" else 503)


def make_app(tables: LiveTables) -> Starlette:
    """Return the application that serves these tables."""
    return Starlette(routes=TableEndpoints(tables).routes(), exception_handlers={HTTPException: _http_error})


async def _http_error(request: Request, error: Exception) -> Response:
    del request
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


async def _read_body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > _BODY_BYTES_MAX:
            raise HTTPException(413, f"a query has at most {_BODY_BYTES_MAX} bytes")
    try:
        body = json.loads(bytes(data))
    except ValueError as error:
        raise HTTPException(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise HTTPException(400, 'the body is no object: write {"sql": "SELECT ..."}')
    return body


def _row_limit(value: Any) -> int | None:
    if value is None:
        return None
    try:
        rows = int(value)
    except (TypeError, ValueError):
        rows = 0
    if rows < 1:
        raise HTTPException(400, "max_rows is a whole number, 1 or more")
    return rows


def _error(error: QueryError) -> Response:
    return JSONResponse({"error": str(error)}, error.http_status)
