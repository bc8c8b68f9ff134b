"""Three Kafka clients behind one interface, so that one test runs with all of them.

producer(...)  send, flush -> what became of each record, close
reader(...)    read by assignment, offsets by time, beginning and end
admin          topics, partitions, settings, deleted records
"""

from harness.clients.aio import AioKafka
from harness.clients.confluent import Confluent
from harness.clients.face import Client, Delivery, Row
from harness.clients.kafka_python import KafkaPython

ALL: tuple[type[Client], ...] = (Confluent, AioKafka, KafkaPython)

__all__ = ["ALL", "AioKafka", "Client", "Confluent", "Delivery", "KafkaPython", "Row"]
