"""GET .../transactions: open ones, stuck ones with the reason, those that hang in partitions; POST abort."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from klamm.client.admin.transaction_types import TransactionDescription, TransactionListing
from klamm.client.errors import KafkaError
from klamm.console.app.application import RouteRight, redirect
from klamm.console.app.pages.base import PageGroup
from klamm.console.app.requests import ConsoleRequest
from klamm.console.core.commands import make_command
from klamm.console.core.roles import Action
from klamm.console.core.tables import parse_table_query, select_page
from klamm.console.core.transaction_states import OPEN_STATES, explain_stuck
from klamm.console.hanging_transactions import CANDIDATES_MAX, abort_hanging, search_hanging
from klamm.http.messages import HttpResponse
from klamm.http.refusals import HttpRefusal
from klamm.model.ids import TopicPartition

_DESCRIBED_MAX: Final = 500
"""Open transactions whose topics are read for a visitor who may not see all topics."""
_COLUMNS: Final = {"id": attrgetter("transactional_id"), "state": attrgetter("state")}


class _TransactionRow(NamedTuple):
    """One transactional id, and why its transaction does not end; empty while it may."""

    listing: TransactionListing
    about: TransactionDescription | None
    stuck: str


class TransactionPages(PageGroup):
    """Transactions."""

    def add_routes(self) -> None:
        """Serve these pages."""
        self.app.get("/c/{cluster}/transactions", self.list_transactions, RouteRight(Action.VIEW))
        self.app.get("/c/{cluster}/hanging-transactions", self.list_hanging, RouteRight(Action.VIEW))
        self.app.post("/c/{cluster}/hanging-transactions", self.abort_hanging, RouteRight(Action.CLUSTER))
        self.app.post("/c/{cluster}/transactions/{id}/abort", self.abort, RouteRight(Action.CLUSTER))

    async def list_transactions(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../transactions?all=1&q=: those that are open; with `all` every transactional id."""
        admin = await request.cluster.admin()
        every = request.text("all") == "1"
        sees_all = request.may_everywhere(Action.VIEW)
        if every:
            # Ids without an open transaction have no topics by which they could be chosen.
            request.require_everywhere(Action.VIEW)
        listings = await admin.list_transactions(states=() if every else OPEN_STATES)
        if not sees_all:
            listings = await self._choose_visible(request, listings[:_DESCRIBED_MAX])
        query = parse_table_query(request.query, _COLUMNS, "id", ("all",))
        table = select_page(listings, query, _COLUMNS, attrgetter("transactional_id"))
        rows = await asyncio.gather(*(self._describe(request, listing) for listing in table.rows))
        return self.app.page(
            request,
            "transactions.html",
            title="Transactions",
            section="transactions",
            view="all" if every else "open",
            table=table,
            rows=rows,
            every=every,
            sees_all=sees_all,
            open_states=OPEN_STATES,
            command=make_command(request.cluster.cluster.command_target, "txn", "ls"),
        )

    async def _choose_visible(
        self, request: ConsoleRequest, listings: Sequence[TransactionListing]
    ) -> list[TransactionListing]:
        """Return the transactions whose topics are all within the visitor's roles."""
        rows = await asyncio.gather(*(self._describe(request, listing) for listing in listings))
        return [row.listing for row in rows if row.about is not None and _is_within(request, row.about, Action.VIEW)]

    async def _describe(self, request: ConsoleRequest, listing: TransactionListing) -> _TransactionRow:
        admin = await request.cluster.admin()
        try:
            about = (await admin.describe_transactions([listing.transactional_id]))[listing.transactional_id]
        except KafkaError:
            # It expired between the list and its description.
            return _TransactionRow(listing, None, "")
        topics = request.sample.topics
        leaderless = [
            where
            for where in about.partitions
            if where.topic in topics
            and (partition := topics[where.topic].partition(where.partition)) is not None
            and partition.leader < 0
        ]
        return _TransactionRow(listing, about, explain_stuck(about, self.parts.now_ms(), leaderless))

    async def list_hanging(self, request: ConsoleRequest) -> HttpResponse:
        """GET .../hanging-transactions?topic=: open in a partition, without an entry of a coordinator."""
        name, topics = request.text("topic").strip(), request.sample.topics
        if name and name not in topics:
            raise HttpRefusal(404, f"There is no topic {name}")
        if name:
            request.require(Action.VIEW, name)
        admin = await request.cluster.admin()
        visible = request.visible([name] if name else topics)
        search = await search_hanging(admin, [topics[topic] for topic in visible])
        return self.app.page(
            request,
            "hanging_transactions.html",
            title="Hanging transactions",
            section="transactions",
            view="hanging",
            search=search,
            candidates_max=CANDIDATES_MAX,
            topic_name=name,
        )

    async def abort_hanging(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../hanging-transactions: write an abort marker to the partition, if it hangs there still."""
        topic, partition = request.form("topic"), request.form_number("partition")
        producer_id, start_offset = request.form_number("producer_id"), request.form_number("start_offset")
        if not topic or partition is None or producer_id is None or start_offset is None:
            raise HttpRefusal(400, "Name topic, partition, producer and start offset; nothing was changed")
        request.require(Action.CLUSTER, topic)
        admin = await request.cluster.admin()
        where = TopicPartition(topic, partition)
        await self.app.change(
            request,
            "abort hanging transaction",
            f"{topic}-{partition}",
            functools.partial(abort_hanging, admin, where, producer_id, start_offset),
            done=f"Aborted the transaction of producer {producer_id} in {topic}-{partition}.",
            detail={"producer_id": producer_id, "start_offset": start_offset},
        )
        return redirect(self.path(request, "hanging-transactions"))

    async def abort(self, request: ConsoleRequest) -> HttpResponse:
        """POST .../abort: fence the producer, which aborts its open transaction."""
        name = request.values["id"]
        admin = await request.cluster.admin()
        if not request.may_everywhere(Action.CLUSTER):
            about = (await admin.describe_transactions([name]))[name]
            if not _is_within(request, about, Action.CLUSTER):
                request.require_everywhere(Action.CLUSTER)
        work = functools.partial(admin.fence_producers, [name])
        done = f"Fenced the producer of {name}; its open transaction is aborted."
        await self.app.change(request, "abort transaction", name, work, done=done)
        return redirect(self.path(request, "transactions"))


def _is_within(request: ConsoleRequest, about: TransactionDescription, action: Action) -> bool:
    """Whether a transaction has topics, and an action is allowed for all of them."""
    topics = {where.topic for where in about.partitions}
    return bool(topics) and len(request.visitor.visible(request.cluster.name, topics, action)) == len(topics)
