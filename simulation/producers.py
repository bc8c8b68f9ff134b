"""Producers as load: idempotent and acks=all; each value is sent until it is acknowledged."""

from typing import Any

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.records import build_batch
from simulation.client import GONE, LATER, Client
from simulation.cluster import SimCluster
from simulation.ledger import Ledger, Place


class SimProducer(Client):
    """Sends small batches to the partitions of one topic, one at a time per partition."""

    def __init__(
        self, cluster: SimCluster, ledger: Ledger, name: str, topic: str, partitions: int, pace: float
    ) -> None:
        super().__init__(cluster, name)
        self.ledger = ledger
        self.topic = topic
        self.partitions = partitions
        self.pace = pace
        self.duplicate_chance = 0.0
        self.producer_id = self.epoch = -1
        self.number = 0
        self.busy = 0
        """Partitions whose last batch is not settled yet."""
        self._left = 0

    @property
    def done(self) -> bool:
        """Whether everything sent has been settled after a stop."""
        return self.stopping and not self.busy

    def grow(self, partitions: int) -> None:
        """There are more partitions now."""
        for index in range(self.partitions, partitions):
            if self.producer_id >= 0:
                self.loop.spawn(self.process, self._send_all(index), name=f"{self.name} to {self.topic}-{index}")
        self.partitions = partitions

    async def run(self) -> None:
        self.producer_id, self.epoch = await self.retry(self._init)
        for index in range(self.partitions):
            self.loop.create_task(self._send_all(index), name=f"{self.name} to {self.topic}-{index}")

    async def _init(self) -> tuple[int, int]:
        response = await self.ask(None, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000), 4)
        if response.error_code:
            raise OSError(ErrorCode(response.error_code).name)
        return response.producer_id, response.producer_epoch

    async def _send_all(self, index: int) -> None:
        sequence = 0
        place = (self.topic, index)
        while True:
            await self.pause(self.pace)
            if self.stopping:
                return
            values = []
            for _ in range(self.random.choice((1, 1, 2, 4))):
                self.number += 1
                values.append(f"{self.name}.{self.number}".encode())
                self.ledger.send(place, values[-1], self.name, self.number)
            self.busy += 1
            settled = await self._deliver(index, values, sequence)
            self.busy -= 1
            if not settled:
                return
            sequence += len(values)

    def records(self, _place: Place, values: list[bytes]) -> list[Any]:
        """The records of a batch."""
        now = self.cluster.machines[1].clock.now_ms()
        return [(now, None, value, ()) for value in values]

    async def _deliver(self, index: int, values: list[bytes], sequence: int) -> bool:
        """Send one batch until its fate is known; False when this producer cannot go on."""
        batch = bytes(
            build_batch(
                self.records((self.topic, index), values),
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
            )
        )
        while True:
            leader = await self.leader_of(self.topic, index)
            if self.duplicate_chance and self.random.random() < self.duplicate_chance:
                self.loop.create_task(self._send_copy(index, batch), name="a copy")
            try:
                code, offset = await self._produce(leader, index, batch)
            except GONE:
                self.forget_leader(self.topic, index)
                await self.pause()
                continue
            if code == ErrorCode.NONE:
                self.ledger.ack((self.topic, index), offset, values)
                return True
            if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                return True  # written before, at an offset that is no longer known
            if code not in LATER:
                self.ledger.violate(
                    f"7: {self.topic}-{index} refused {values[0]!r} (sequence {sequence}) with {code.name}"
                )
                return False
            self.forget_leader(self.topic, index)
            await self.pause()

    async def _produce(self, leader: int | None, index: int, batch: bytes) -> tuple[ErrorCode, int]:
        request = ProduceRequest(
            acks=-1,
            timeout_ms=2_000,
            topic_data=[
                TopicProduceData(name=self.topic, partition_data=[PartitionProduceData(index=index, records=batch)])
            ],
        )
        response = await self.ask(leader, request, 11)
        answer = response.responses[0].partition_responses[0]
        return ErrorCode(answer.error_code), answer.base_offset

    async def _send_copy(self, index: int, batch: bytes) -> None:
        """The same request again, later and by another way: a network that duplicates."""
        await self.pause(0.5)
        node = self.random.choice(sorted(self.brokers) or [None])
        try:
            await self._produce(node, index, batch)
        except GONE:
            pass
