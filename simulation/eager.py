"""Producers that never wait: the next transaction begins when the last is decided, the next batch before an answer.

Applications in a tight loop do this, Kafka Streams among them: the markers of a transaction are still on their way to
other nodes when the first batches of the next arrive there.
"""

import asyncio

from klamm.model.errors import ErrorCode
from simulation.client import GONE
from simulation.ledger import Transaction
from simulation.producers import SimProducer
from simulation.transactions import NewEpochRequired, TransactionalProducer, read_added
from simulation.windows import WINDOW_MAX, BatchIdentity, deliver, make_window


class EagerTransactionalProducer(TransactionalProducer):
    """Writes to all partitions at once, several batches to each, and begins again without a pause."""

    async def rest(self) -> None:
        """No pause until the cluster comes to rest."""
        if self.ledger.healed:
            await super().rest()

    async def transact(self) -> None:
        """Write to every partition at once, then commit or abort."""
        transaction = self.open()
        partitions = list(range(self.partitions))
        if not self.new_protocol and self.random.random() < 0.2:
            await self._abort_at_once(transaction, partitions)
            return
        if not self.new_protocol:
            await self.add_partitions(partitions)
        elif self.random.random() < 0.3:
            await self._widen(transaction, partitions)
        results = await asyncio.gather(
            *(self._fill(transaction, index) for index in partitions), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        await self.end(transaction, commit=self.random.random() < 0.7)

    async def _abort_at_once(self, transaction: Transaction, partitions: list[int]) -> None:
        """Open a transaction and abort it without waiting for an answer, as librdkafka does."""
        transaction.outcome = "aborted"
        node = await self.coordinator(1, self.name)
        add = self.loop.create_task(self.ask(node, self.make_add_partitions(partitions), 3))
        end = self.loop.create_task(self.ask(node, self.make_end(commit=False), 4))
        await asyncio.wait((add, end))
        try:
            added = read_added(add.result())
            code = ErrorCode(end.result().error_code)
        except GONE as error:
            raise NewEpochRequired("the coordinator is gone") from error
        if added == {ErrorCode.NONE}:
            self.check_answer(code)  # the transaction was open when its end was asked for
        if added != {ErrorCode.NONE} or code:
            raise NewEpochRequired(code.name)
        self.transaction = None

    async def _widen(self, transaction: Transaction, partitions: list[int]) -> None:
        """Send two requests at once: one with a partition that is new to the transaction, and the next of another.

        A producer whose last full batch goes together with the first of another partition does this.
        """
        leaders = [await self.leader_of(self.topic, index) for index in partitions]
        pairs = [(old, new) for old in partitions for new in partitions if old != new and leaders[old] == leaders[new]]
        if not pairs:
            return
        old, new = self.random.choice(pairs)
        await self.produce(transaction, old, [f"{transaction.name}.{old}.open".encode()])
        writer = BatchIdentity(self.producer_id, self.epoch, self.name, self.produce_version)
        windows = []
        for index, batches in ((old, 2), (new, 1)):
            values = [[f"{transaction.name}.{index}.wide.{number}".encode()] for number in range(batches)]
            for value in values:
                self.ledger.send((self.topic, index), value[0], self.name, len(self.ledger.sent), transaction)
            windows.append(make_window(self, (self.topic, index), writer, self.sequences.get(index, 0), values))
        (first, second), (added,) = windows
        first.request.topic_data[0].partition_data += added.request.topic_data[0].partition_data
        answers = await asyncio.gather(
            *(self.ask(leaders[old], batch.request, writer.version) for batch in (first, second)),
            return_exceptions=True,
        )
        results = []
        for answer in answers:
            if isinstance(answer, GONE):
                raise NewEpochRequired("the leader is gone")
            if isinstance(answer, BaseException):
                raise answer
            results += answer.responses[0].partition_responses
        written = [code == ErrorCode.NONE for code in (ErrorCode(result.error_code) for result in results)]
        for index, batch, result in zip((old, new, old), (first, added, second), results, strict=True):
            if result.error_code == ErrorCode.NONE:
                self.ledger.ack((self.topic, index), result.base_offset, batch.values)
                self.sequences[index] = batch.sequence + 1
        if written[0] and results[2].error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.ledger.violate(
                f"7: {self.topic}-{old} refused {second.values[0]!r}, which was sent after {first.values}"
            )
        if not all(written):
            raise NewEpochRequired("a batch of two requests was refused")

    async def _fill(self, transaction: Transaction, index: int) -> None:
        place = (self.topic, index)
        batches: list[list[bytes]] = []
        for _ in range(self.random.randint(1, WINDOW_MAX)):
            values = [
                f"{transaction.name}.{index}.{len(batches)}.{i}".encode() for i in range(self.random.randint(1, 2))
            ]
            for value in values:
                self.ledger.send(place, value, self.name, len(self.ledger.sent), transaction)
            batches.append(values)
        sequence = self.sequences.get(index, 0)
        writer = BatchIdentity(self.producer_id, self.epoch, self.name, self.produce_version)
        window = make_window(self, place, writer, sequence, batches)
        self.check_answer(await deliver(self, self.ledger, place, window, writer.version), sequence)
        self.sequences[index] = sequence + sum(map(len, batches))


class PipelinedProducer(SimProducer):
    """An idempotent producer with several requests in flight to each partition."""

    async def _send_all(self, index: int) -> None:
        sequence, place = 0, (self.topic, index)
        writer = BatchIdentity(self.producer_id, self.epoch)
        while True:
            await self.pause(self.pace)
            if self.stopping:
                return
            # A log that does not know a producer takes any sequence, so the first batch goes alone.
            batches = [self._make_batch(place) for _ in range(self.random.randint(2, WINDOW_MAX) if sequence else 1)]
            self.busy += 1
            window = make_window(self, place, writer, sequence, batches)
            code = await deliver(self, self.ledger, place, window, writer.version)
            self.busy -= 1
            if code:
                self.ledger.violate(
                    f"7: {self.topic}-{index} refused {batches[0][0]!r} (sequence {sequence}) with {code.name}"
                )
                return
            sequence += sum(map(len, batches))

    def _make_batch(self, place: tuple[str, int]) -> list[bytes]:
        values = []
        for _ in range(self.random.choice((1, 1, 2, 4))):
            self.number += 1
            values.append(f"{self.name}.{self.number}".encode())
            self.ledger.send(place, values[-1], self.name, self.number)
        return values
