"""Consuming: pure parts (`assignors`, `subscription`, `sessions`, `batches`) under a shell.

`fetcher` reads ahead, `classic` and `modern` are the two ways to be in a group, `offsets` asks for and commits them,
`consumer` is what users hold.
"""

from klamm.client.consumer.consumer import AsyncConsumer

__all__ = ["AsyncConsumer"]
