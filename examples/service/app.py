"""A web service that takes orders over HTTP and keeps them in a topic: FastAPI and Klamm's asyncio client.

    ORDERS_BOOTSTRAP=localhost:9092 uvicorn app:app

POST /orders acknowledges an order when the broker has it; GET /orders/{id} answers from what was read back, so that any
number of these services over the same topic agree.
"""

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from klamm.client import AsyncConsumer, AsyncProducer, KafkaError

BOOTSTRAP = os.environ.get("ORDERS_BOOTSTRAP", "localhost:9092")
TOPIC = os.environ.get("ORDERS_TOPIC", "orders")


class Order(BaseModel):
    """The order of a guest."""

    table: int
    dish: str


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings = {"bootstrap.servers": app.state.bootstrap}
    app.state.orders = {}
    async with (
        AsyncProducer(
            {**settings, "linger.ms": 0, "delivery.timeout.ms": 5000, "request.timeout.ms": 2000}
        ) as producer,
        AsyncConsumer({**settings, "group.id": f"orders-{uuid.uuid4()}", "auto.offset.reset": "earliest"}) as consumer,
    ):
        app.state.producer = producer
        consumer.subscribe([app.state.topic])
        reader = asyncio.create_task(_read(app, consumer))
        try:
            yield
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


async def _read(app: FastAPI, consumer: AsyncConsumer) -> None:
    """Every order in the topic, of all clients, for as long as the service runs."""
    while True:
        for record in await consumer.poll(1.0):
            app.state.orders[record.key.decode()] = json.loads(record.value)


def create_app(bootstrap: str = BOOTSTRAP, topic: str = TOPIC) -> FastAPI:
    app = FastAPI(title="Orders", lifespan=lifespan)
    app.state.bootstrap, app.state.topic = bootstrap, topic

    @app.post("/orders", status_code=201)
    async def place(order: Order) -> dict[str, Any]:
        order_id = uuid.uuid4().hex
        try:
            body = order.model_dump_json().encode()
            placed = await app.state.producer.send_and_wait(app.state.topic, body, order_id.encode())
        except KafkaError as error:
            raise HTTPException(503, f"the order was not taken: {error.code.name}") from error
        return {"id": order_id, "offset": placed.offset}

    @app.get("/orders/{order_id}")
    async def show(order_id: str) -> dict[str, Any]:
        if order_id not in app.state.orders:
            raise HTTPException(404, "no such order, or not yet")
        return dict(app.state.orders[order_id])

    return app


app = create_app()
