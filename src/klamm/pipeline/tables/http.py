"""Tables over HTTP: queries as JSON, rows by key, and changes as server-sent events.

    POST /query                 {"sql": "...", "parameters": [...], "max_rows": n}
    GET  /query?sql=...         the same; with watch=1 changes as server-sent events until the client leaves
    GET  /tables                what is served, with lag and bad records
    GET  /tables/NAME/KEY       one row
    GET  /health                200 when all tables are caught up and followed, otherwise 503

Reading needs no authorization: listen on a local address, or behind a proxy that checks it.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from klamm.http.messages import HttpRequest, HttpResponse, json_response
from klamm.http.refusals import HttpRefusal
from klamm.http.router import HttpRoute, split_path
from klamm.pipeline.local_app import LocalApp
from klamm.pipeline.tables.core.answer_changes import Change
from klamm.pipeline.tables.live_tables import LiveTables, Watch
from klamm.pipeline.tables.plain_values import to_plain, unique_names
from klamm.pipeline.tables.queries import QueryError

_BODY_BYTES_MAX: Final = 1 << 20
_KEEP_ALIVE_S: Final = 15.0
WATCHES_MAX: Final = 64
"""Push queries at a time: each runs its query again after every change."""


class TableApp(LocalApp):
    """The application of one set of tables."""

    def __init__(self, tables: LiveTables, *, queries_max: int = 8) -> None:
        super().__init__("tables", body_bytes_max=_BODY_BYTES_MAX)
        self._tables = tables
        self._query_threads = ThreadPoolExecutor(queries_max, "klamm-query")
        self._watch_threads = ThreadPoolExecutor(WATCHES_MAX, "klamm-watch")
        self._watches = 0
        # Queries have a time limit of their own, which may be longer than that of requests.
        self.router.add("POST", "/query", self.post_query, streams=True)
        self.router.add("GET", "/query", self.get_query, streams=True)
        self.router.add("GET", "/tables", self.list_tables)
        self.router.add("GET", "/tables/{name}/{key}", self.get_row, streams=True)
        self.router.add("GET", "/health", self.get_health)

    def route(self, method: str, raw_path: str) -> tuple[HttpRoute, dict[str, str]]:
        """Return the route of a path and the values in it; a key is the rest of the path, with its slashes."""
        segments = raw_path.lstrip("/").split("/", 2)
        is_row = len(segments) == 3 and segments[0] == "tables"
        return self.router.match(method, segments if is_row else split_path(raw_path))

    def explain(self, error: Exception) -> HttpRefusal | None:
        """Return the refusal of a query."""
        return HttpRefusal(error.http_status, str(error)) if isinstance(error, QueryError) else None

    def close(self) -> None:
        """End; threads that wait for changes end with the tables."""
        super().close()
        for threads in (self._query_threads, self._watch_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._query_threads, call, *arguments)

    async def post_query(self, request: HttpRequest) -> HttpResponse:
        """Answer a query of the body."""
        body = await _read_body(request)
        sql, parameters = body.get("sql"), body.get("parameters") or []
        if not isinstance(sql, str) or not isinstance(parameters, list | dict):
            raise HttpRefusal(400, 'write {"sql": "SELECT ...", "parameters": [...]}')
        return await self._answer(sql, parameters, _row_limit(body.get("max_rows")))

    async def get_query(self, request: HttpRequest) -> HttpResponse:
        """Answer a query of the address, or push its changes."""
        sql = request.text("sql")
        if not sql:
            raise HttpRefusal(400, "write /query?sql=SELECT ...")
        if request.text("watch").lower() in ("1", "true", "yes"):
            return await self._push(sql, request)
        return await self._answer(
            sql, [], _row_limit(request.text("max_rows") if "max_rows" in request.query else None)
        )

    async def _answer(self, sql: str, parameters: Any, row_limit: int | None) -> HttpResponse:
        call = functools.partial(self._tables.answer_rows, sql, parameters, max_rows=row_limit)
        answer = await self._run(call)
        names = unique_names(list(answer.names))
        rows = [dict(zip(names, map(to_plain, row), strict=True)) for row in answer.rows]
        return json_response({"columns": answer.columns, "rows": rows, "truncated": answer.truncated})

    async def _push(self, sql: str, request: HttpRequest) -> HttpResponse:
        if self._watches >= WATCHES_MAX:
            raise HttpRefusal(503, f"{WATCHES_MAX} push queries run already")
        self._watches += 1
        # Not in the stream's own end: a stream that was never begun, as for HEAD, has none.
        request.when_answered.append(self._end_watch)
        watch = await self._run(self._tables.open_watch, sql)
        return HttpResponse(content_type="text/event-stream; charset=utf-8", chunks=self._events(watch))

    def _end_watch(self) -> None:
        self._watches -= 1

    async def _events(self, watch: Watch) -> AsyncIterator[bytes]:
        try:
            async for changes in self._follow(watch):
                for change in changes:
                    row = dict(zip(watch.names, map(to_plain, change.row), strict=True))
                    yield f"data: {json.dumps({'change': change.sign, 'row': row})}\n\n".encode()
                if not changes:
                    yield b": nothing changed\n\n"  # a proxy closes a connection without traffic
        except QueryError as error:
            yield f"event: error\ndata: {json.dumps({'error': str(error)})}\n\n".encode()
        finally:
            watch.close()  # the client has left: its thread is for others

    async def _follow(self, watch: Watch) -> AsyncIterator[list[Change]]:
        loop = asyncio.get_running_loop()
        threads = self._watch_threads
        while (changes := await loop.run_in_executor(threads, watch.next_changes, _KEEP_ALIVE_S)) is not None:
            yield changes

    async def list_tables(self, _: HttpRequest) -> HttpResponse:
        """List the tables."""
        return json_response(await self._run(self._tables.status))

    async def get_row(self, request: HttpRequest) -> HttpResponse:
        """Return the row of a key."""
        name, key = request.values["name"], request.values["key"]
        row = await self._run(self._tables.get, name, key)
        if row is None:
            raise HttpRefusal(404, f"{name} has no row {key}")
        return json_response({column: to_plain(value) for column, value in row.items()})

    async def get_health(self, _: HttpRequest) -> HttpResponse:
        """Tell whether answers are current."""
        error = self._tables.error
        state = "failing" if error is not None else "ready" if self._tables.ready else "catching up"
        body = {"state": state, "error": None if error is None else str(error)}
        return json_response(body, 200 if state == "ready" else 503)


async def _read_body(request: HttpRequest) -> dict[str, Any]:
    assert request.stream is not None
    data = await request.stream.read(_BODY_BYTES_MAX)
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise HttpRefusal(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise HttpRefusal(400, 'the body is no object: write {"sql": "SELECT ..."}')
    return body


def _row_limit(value: Any) -> int | None:
    if value is None:
        return None
    try:
        rows = int(value)
    except (TypeError, ValueError):
        rows = 0
    if rows < 1:
        raise HttpRefusal(400, "max_rows is a whole number, 1 or more")
    return rows
