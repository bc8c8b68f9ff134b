"""GET .../transactions: open ones with their age and partitions; POST abort."""

from __future__ import annotations

import asyncio
import functools
from operator import attrgetter
from typing import Final

from klamm.client.admin.transaction_types import TransactionDescription, TransactionListing
from klamm.client.errors import KafkaError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.commands import make_command
from klamm.console.core.roles import Action
from klamm.console.core.tables import parse_table_query, select_page
from klamm.http.messages import HttpResponse

_OPEN: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
_COLUMNS: Final = {"id": attrgetter("transactional_id"), "state": attrgetter("state")}


class TransactionPages(PageGroup):
    """Transactions."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/transactions", self.list_transactions, RouteRight(Action.VIEW))
        self.app.post("/c/{cluster}/transactions/{id}/abort", self.abort, RouteRight(Action.CLUSTER))

    async def list_transactions(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../transactions?all=1&q=: those that are open; with `all` every transactional id."""
        admin = await request.cluster.admin()
        every = request.text("all") == "1"
        listings = await admin.list_transactions(states=() if every else _OPEN)
        query = parse_table_query(request.query, _COLUMNS, "id", ("all",))
        table = select_page(listings, query, _COLUMNS, attrgetter("transactional_id"))
        described = await asyncio.gather(*(self._describe(request, listing) for listing in table.rows))
        return self.app.page(
            request,
            "transactions.html",
            title="Transactions",
            section="transactions",
            table=table,
            rows=list(zip(table.rows, described, strict=True)),
            every=every,
            open_states=_OPEN,
            command=make_command(request.cluster.cluster.command_target, "txn", "ls"),
        )

    async def _describe(self, request: ConsoleRequest, listing: TransactionListing) -> TransactionDescription | None:
        admin = await request.cluster.admin()
        try:
            return (await admin.describe_transactions([listing.transactional_id]))[listing.transactional_id]
        except KafkaError:
            # It expired between the list and its description.
            return None

    async def abort(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../abort: fence the producer, which aborts its open transaction."""
        name = request.values["id"]
        admin = await request.cluster.admin()
        work = functools.partial(admin.fence_producers, [name])
        done = f"Fenced the producer of {name}; its open transaction is aborted."
        await self.app.change(request, "abort transaction", name, work, done=done)
        return redirect(self.path(request, "transactions"))
