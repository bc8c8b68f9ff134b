"""The producer: pure parts in `core` (accumulator, partitioners, identity, transactions) under a shell.

`batch` is a batch and the deliveries of its records, `sender` sends it, `backpressure` blocks callers while
buffer.memory is full, `session` and `coordinator` handle producer ids and transactions, `tables` turns Arrow tables
into batches; `producer` is the public class.
"""

from klamm.client.producer.batch import Delivery
from klamm.client.producer.coordinator import GroupMetadata
from klamm.client.producer.prepared_transaction import PreparedTransaction, end_prepared
from klamm.client.producer.producer import AsyncProducer

__all__ = ["AsyncProducer", "Delivery", "GroupMetadata", "PreparedTransaction", "end_prepared"]
