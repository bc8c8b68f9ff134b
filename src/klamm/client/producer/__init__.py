"""Producing: pure parts (`partitioners`, `batch`, `accumulator`, `identity`, `transactions`) under a shell.

`sender` gets batches to brokers, `coordinator` asks for ids and ends transactions, `producer` is what users hold.
"""

from klamm.client.producer.batch import Delivery
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.producer.producer import AsyncProducer

__all__ = ["AsyncProducer", "Delivery", "GroupMetadata"]
