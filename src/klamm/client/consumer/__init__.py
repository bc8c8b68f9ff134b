"""Consuming: pure parts (`assignors`, `subscription`, `sessions`, `batches`, `shelf`) under a shell.

`fetcher` reads ahead, `shelf` hands out, `classic` and `modern` are the two ways to be in a group, `holdings` is what a
group gave, `positions` says where to read on, `commits` stores it, `offsets` asks brokers for both; `consumer` is what
users hold.
"""

from klamm.client.consumer.consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
