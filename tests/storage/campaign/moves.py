"""Moves between log dirs inside the campaign: the mover of a broker, one step at a time, and what a start does first.

The metadata is the model's: `Partition.home` is the log dir it names for a partition, changed by the mover's own word.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from klamm.model.clock import Clock
from klamm.model.ids import TopicPartition, Uuid
from klamm.replication.log_dir_moves import LogDirMove, LogDirMoves
from klamm.server.cluster.move_service import complete_interrupted_moves
from klamm.storage import Log, LogManager

from .model import State

HOMES = ("data", "other")
"""The two log dirs of a campaign, below its folder."""


def log_dirs(folder: str) -> tuple[str, ...]:
    """Their paths."""
    return tuple(f"{folder}/{name}" for name in HOMES)


@dataclass(eq=False)
class Held:
    """As much of a replica as the mover looks at."""

    log: Log
    topic_id: bytes
    index: int
    retired: bool = False
    has_staged: bool = False

    def refresh(self) -> None:
        pass


class SteppedMoves(LogDirMoves):
    """The mover, without a loop and its tasks: `step` takes one move one step further."""

    def __init__(self, manager: LogManager, clock: Clock, moved: Callable[[TopicPartition, Uuid], None]) -> None:
        self._known: dict[TopicPartition, Held] = {}
        replicas: Any = SimpleNamespace(logs=manager, find=self._find, on_role=[], commit=lambda: None)

        async def assign(replica: Any, directory: Uuid) -> None:
            moved(replica.log.topic_partition, directory)

        unused: Any = None
        super().__init__(unused, replicas, clock, assign, unused, 1)

    async def _in_thread(self, work: Callable[[], object]) -> None:
        work()

    def _find(self, topic: str, index: int) -> Any:
        log = self._logs.get(topic, index)
        if log is None:
            return None
        known = self._known.get(log.topic_partition)
        if known is None or known.log is not log:
            known = self._known[log.topic_partition] = Held(log, log.topic_id, index)
        return known

    def _begin(self, move: LogDirMove) -> None:
        self._moves[move.replica] = move

    @property
    def under_way(self) -> list[LogDirMove]:
        return list(self._moves.values())

    def step(self, move: LogDirMove) -> bool:
        """Whether that was the last: the copy has taken over."""
        arrived = _result(self._step(move))
        if arrived:
            del self._moves[move.replica]
        return arrived

    def finish(self, move: LogDirMove) -> None:
        for _ in range(1000):
            if self.step(move):
                return
        raise AssertionError(f"the move of {move.source.name} comes to no end")

    def give_up(self, move: LogDirMove) -> None:
        self._cancel(move)
        self._logs.drop_future(move.future)


def _result(coroutine: Coroutine[Any, Any, bool]) -> bool:
    """What a coroutine returns that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return bool(done.value)
    raise AssertionError("the move waits for something")


def settle(manager: LogManager, state: State) -> None:
    """What a broker does with the copies it finds, before it goes on with their moves."""

    def partition(topic: str, index: int) -> SimpleNamespace | None:
        known = state.get(TopicPartition(topic, index))
        return None if known is None else SimpleNamespace(directory=lambda _node: directory_of(manager, known.home))

    topics = SimpleNamespace(partition=partition)
    image: Any = SimpleNamespace(topics=topics)
    complete_interrupted_moves(manager, image, node_id=1)


def directory_of(manager: LogManager, home: str) -> Uuid | None:
    """The id of the log dir with that name."""
    return next((uuid for path, uuid in manager.directory_ids.items() if path.endswith("/" + home)), None)


def home_of(manager: LogManager, log: Log) -> str:
    """The name of the log dir a log lies in."""
    return manager.log_dir_of(log).path.rpartition("/")[2]
