"""Producing: pure parts (`rows`, `topics`, `partitioners`, `accumulator`, `identity`, `transactions`) under a shell.

`batch` is what goes to a broker and the promises about it, `sender` gets it there, `room` is where callers wait while
buffers are full, `session` stands for the producer with coordinators, which `coordinator` asks, `tables` makes batches
of Arrow tables; `producer` is what users hold.
"""

from klamm.client.producer.batch import Delivery
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.producer.prepared_transaction import PreparedTransaction, end_prepared
from klamm.client.producer.producer import AsyncProducer

__all__ = ["AsyncProducer", "Delivery", "GroupMetadata", "PreparedTransaction", "end_prepared"]
