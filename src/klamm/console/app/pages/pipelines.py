"""GET .../pipelines, one pipeline, its dead letters; POST pause, resume, restart, stop, redrive."""

from __future__ import annotations

import functools
from typing import Final

from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.pipeline_graphs import draw_graph
from klamm.console.core.pipeline_rows import GraphStatement, list_dead_letters
from klamm.console.core.roles import Action, masked_paths
from klamm.console.dead_letters import LetterRedrive, read_letters
from klamm.console.pipelines import PipelineEntry, send_control
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.errors import ConfigError
from klamm.model.units import pluralize
from klamm.pipeline.sql.core.published_status import STOP

_DONE: Final = {"pause": "Paused", "resume": "Resumed", "restart": "Restarted"}


class PipelinePages(PageGroup):
    """Pipelines of the cluster."""

    def add_routes(self) -> None:
        """Serve these pages."""
        view, change = RouteRight(Action.VIEW, "pipeline"), RouteRight(Action.PIPELINES, "pipeline")
        self.app.get("/c/{cluster}/pipelines", self.list_pipelines, RouteRight(Action.VIEW))
        self.app.get("/c/{cluster}/pipelines/{pipeline}", self.show_pipeline, view)
        self.app.get("/c/{cluster}/pipelines/{pipeline}/dead-letters/{stream}", self.show_letters, view)
        self.app.post("/c/{cluster}/pipelines/{pipeline}/dead-letters/{stream}", self.redrive, change)
        self.app.post("/c/{cluster}/pipelines/{pipeline}", self.control, change)

    async def list_pipelines(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../pipelines."""
        entries = await self.parts.pipelines.list_pipelines(request.cluster)
        names = request.visitor.visible(request.cluster.name, entries)
        return self.app.page(
            request,
            "pipelines.html",
            title="Pipelines",
            section="pipelines",
            rows=[entries[name].row for name in names],
        )

    async def show_pipeline(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../pipelines/{pipeline}: graph, rates, lag, state, late and bad rows, errors."""
        row = (await self._find(request)).row
        return self.app.page(
            request,
            "pipeline.html",
            title=row.name,
            section="pipelines",
            row=row,
            graph=draw_graph(row, self.path(request)),
            letters=list_dead_letters(row),
            # The command reads the files of the machine on which the pipeline runs.
            command=f"klamm pipeline show {row.place}" if row.is_here else "",
        )

    async def show_letters(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../dead-letters/{stream}: the newest ones."""
        entry = await self._find(request)
        row, statement = entry.row, self._find_letters(request, entry)
        assert statement.dead_letters is not None
        request.require(Action.READ, statement.dead_letters)
        sample = request.sample
        # The topic is made with the first letter.
        there = statement.dead_letters in sample.topics
        masked_of = functools.partial(self._masked_paths, request)
        return self.app.page(
            request,
            "dead_letters.html",
            title=f"Dead letters of {statement.name}",
            section="pipelines",
            row=row,
            statement=statement,
            letters=await read_letters(request.cluster, statement, masked_of) if there else [],
            may_redrive=self._may_redrive(request, statement),
        )

    async def redrive(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../dead-letters/{stream}: send those that wait to the topic they came from."""
        statement = self._find_letters(request, await self._find(request))
        if not self._may_redrive(request, statement) or statement.topic is None:
            raise HttpRefusal(403, f"{request.visitor.name} may not send dead letters of {statement.name} again")
        # Others can publish a status: it must not name a topic that the visitor may not read.
        assert statement.dead_letters is not None
        request.require(Action.READ, statement.dead_letters)
        redrive = LetterRedrive(request.cluster, statement, frozenset({statement.topic}))

        async def work() -> None:
            try:
                await redrive.run()
            except (ConfigError, TimeoutError) as error:
                raise ValueError(str(error)) from None

        name = request.values["pipeline"]
        detail = {"stream": statement.name, "to": statement.topic}
        done = f"Sent the waiting dead letters of {statement.name} to {statement.topic} again."
        if await self.app.change(request, "redrive dead letters", name, work, done=done, detail=detail):
            assert request.session is not None
            lost = f"; {pluralize(redrive.lost, 'record')} cut and gone" if redrive.lost else ""
            request.session.messages[-1].text += f" They were {pluralize(redrive.sent, 'record')}{lost}."
        return redirect(self.path(request, "pipelines", name, "dead-letters", statement.name))

    async def control(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../pipelines/{pipeline}: pause, resume or restart a query or all of them; stop the run."""
        entry, name = await self._find(request), request.values["pipeline"]
        action, query = request.form("action"), request.form("query") or None
        if action not in (*_DONE, STOP):
            raise HttpRefusal(400, "Write pause, resume, restart or stop")
        if not entry.row.takes_requests:
            raise HttpRefusal(409, f"{name} in {entry.row.place} takes no requests from the cluster")
        if query is not None and query not in {row.name for row in entry.row.queries}:
            raise HttpRefusal(404, f"{name} has no query {query}")
        about = name if query is None else f"{query} of {name}"
        done = f"{name} stops after its batches." if action == STOP else f"{_DONE[action]} {about}."
        work = functools.partial(send_control, entry, request.cluster, action, query)
        await self.app.change(request, f"{action} pipeline", name, work, done=done, detail={"query": query})
        return redirect(self.path(request, "pipelines", name))

    async def _find(self, request: ConsoleRequest) -> PipelineEntry:
        entry = (await self.parts.pipelines.list_pipelines(request.cluster)).get(request.values["pipeline"])
        if entry is None:
            raise HttpRefusal(404, f"There is no pipeline {request.values['pipeline']} in {request.cluster.name}")
        return entry

    def _find_letters(self, request: ConsoleRequest, entry: PipelineEntry) -> GraphStatement:
        statement = entry.row.statement(request.values["stream"])
        if statement is None or statement.dead_letters is None:
            raise HttpRefusal(404, f"{request.values['stream']} has no dead letters in {entry.row.name}")
        return statement

    def _masked_paths(self, request: ConsoleRequest, topic: str) -> list[tuple[str, ...]]:
        return masked_paths(self.parts.settings.masks, topic, request.visitor)

    def _may_redrive(self, request: ConsoleRequest, statement: GraphStatement) -> bool:
        """Whether there is a topic to send to, and the visitor may write to it."""
        if statement.topic is None or statement.reads_files or statement.refused_rows:
            return False
        return request.may(Action.PIPELINES, request.values["pipeline"]) and request.may(
            Action.PRODUCE, statement.topic
        )
