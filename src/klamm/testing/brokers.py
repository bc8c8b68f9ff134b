"""Brokers for tests, in this process or in a child process, with one interface."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from klamm.testing.control_channel import ChannelClosed, ControlChannel, ControlledBroker, await_stopped, check_reply
from klamm.testing.names import unique

if TYPE_CHECKING:
    from klamm.client import Admin, Consumer, Producer
    from klamm.testing.fault_names import Seconds
    from klamm.testing.node_thread import NodeThread

READY_S: Final = 60.0
STOP_S: Final = 30.0
DEFAULTS: Final = {"offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4"}
"""Fewer internal partitions than by default, so that coordinators load at once."""


def broker_settings(given: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings of a broker or a topic as text, as in a properties file."""
    if not given:
        return {}
    from klamm.client.config import value_text

    return {name: value_text(name, value) for name, value in given.items()}


class Broker(ABC):
    """A broker of a test.

    Port and data stay the same over `kill` or `stop` and `start`; `close` removes the data. Faults hold until `heal`.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        data: str | os.PathLike[str] | None = None,
        config: Mapping[str, Any] | None = None,
        log_level: str = "warning",
    ) -> None:
        self.log_level = log_level
        self.port = port
        self.host = "127.0.0.1"
        self._own_folder = data is None
        self.config = {**DEFAULTS, **broker_settings(config)}
        self.data = tempfile.mkdtemp(prefix="klamm-test-") if data is None else os.fspath(data)

    @property
    def bootstrap(self) -> str:
        """The value of bootstrap.servers for clients."""
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def start(self) -> Self:
        """Start; return when clients can connect."""

    @abstractmethod
    def stop(self) -> None:
        """Stop as on SIGTERM: everything is written and closed."""

    @abstractmethod
    def kill(self) -> None:
        """Stop as on SIGKILL, without cleanup. `start` starts it again on the same port and data."""

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it serves, or is paused."""

    @abstractmethod
    def pause(self) -> None:
        """Stop answering until `resume`; connections stay open."""

    @abstractmethod
    def resume(self) -> None:
        """Continue after `pause`."""

    @abstractmethod
    def slow(self, seconds: Seconds, api: str | int | None = None) -> None:
        """Delay every request (or those of one API, e.g. "Produce") by so many seconds."""

    @abstractmethod
    def refuse(self, error: str | int, api: str | int | None = None, times: int | None = None) -> None:
        """Answer requests with an error, `times` times, without handling them.

        Names are Kafka's, in upper or lower case; numbers and ErrorCode members are accepted too.
        """

    @abstractmethod
    def heal(self) -> None:
        """End pause, delays and errors."""

    def close(self) -> None:
        """Stop and remove the data, if the directory was created here."""
        try:
            if self.running:
                self.stop()
        finally:
            if self._own_folder:
                shutil.rmtree(self.data, ignore_errors=True)

    # Helpers for tests

    def topic(self, prefix: str = "topic", *, partitions: int = 1, config: Mapping[str, Any] | None = None) -> str:
        """Create a topic with a unique name."""
        # Not Admin, whose thread and event loop take longer to start than this request.
        from klamm.client.blocking_cluster import BlockingCluster
        from klamm.model.errors import ErrorCode, KlammError
        from klamm.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest

        name = unique(prefix)
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in broker_settings(config).items()]
        wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=configs)
        with BlockingCluster(self.bootstrap) as cluster:
            result = cluster.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=30_000)).topics[0]
        if result.error_code:
            raise KlammError(ErrorCode(result.error_code), result.error_message or "")
        return name

    def producer(self, **settings: Any) -> Producer:
        """A blocking producer of this broker; close it, or use it in a with statement."""
        from klamm.client import Producer

        return Producer(bootstrap_servers=self.bootstrap, **settings)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A blocking consumer that starts at the first record; without group_id it has a group of its own."""
        from klamm.client import Consumer

        settings.setdefault("auto_offset_reset", "earliest")
        # A group of its own reads everything, whatever other tests of the run have committed.
        settings.setdefault("group_id", unique("group"))
        consumer = Consumer(bootstrap_servers=self.bootstrap, **settings)
        if topics:
            consumer.subscribe(list(topics))
        return consumer

    def admin(self, **settings: Any) -> Admin:
        """A blocking admin client of this broker."""
        from klamm.client import Admin

        return Admin(bootstrap_servers=self.bootstrap, **settings)


class InProcessBroker(Broker):
    """A broker in a thread of this process: the fastest to start."""

    _node_thread: NodeThread | None = None

    def start(self) -> Self:
        """Start; return when clients can connect."""
        from klamm.server.boot.config import embedded_properties, parse_config
        from klamm.testing.node_thread import NodeThread

        if self._node_thread is not None:
            raise RuntimeError("the broker is running already")
        pairs = [f"{key}={value}" for key, value in self.config.items()]
        config = parse_config(embedded_properties(self.data, self.port), pairs, source="the test's settings")
        node_thread = NodeThread(config, log_level=self.log_level)
        self.port = node_thread.start()
        self._node_thread = node_thread
        return self

    @property
    def running(self) -> bool:
        """Whether it serves, or is paused."""
        return self._node_thread is not None

    @property
    def node(self) -> Any:
        """The node, for tests of Klamm itself; use it on its event loop only."""
        return self._require_running().node

    def _require_running(self) -> NodeThread:
        if self._node_thread is None:
            raise RuntimeError("the broker is not running; call start()")
        return self._node_thread

    def stop(self) -> None:
        """End as on SIGTERM."""
        node_thread, self._node_thread = self._require_running(), None
        node_thread.stop()

    def kill(self) -> None:
        """End as on SIGKILL."""
        node_thread, self._node_thread = self._require_running(), None
        node_thread.stop(kill=True)

    def pause(self) -> None:
        """Pause the event loop."""
        self._require_running().freeze()

    def resume(self) -> None:
        """Continue."""
        self._require_running().thaw()

    def slow(self, seconds: Seconds, api: str | int | None = None) -> None:
        """Delay requests."""
        self._require_running().slow(seconds, api)

    def refuse(self, error: str | int, api: str | int | None = None, times: int | None = None) -> None:
        """Answer with an error."""
        self._require_running().refuse(error, api, times)

    def heal(self) -> None:
        """End all faults."""
        self._require_running().heal()


class ChildBroker(ControlledBroker, Broker):
    """A broker in a process of its own: it can be killed by a signal, and does not share the test's interpreter."""

    _process: subprocess.Popen[bytes] | None = None
    _link: ControlChannel | None = None
    _paused = False

    def start(self) -> Self:
        """Start; return when clients can connect."""
        if self._process is not None:
            raise RuntimeError("the broker is running already")
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "klamm.testing.child", str(theirs.fileno()), self.data, str(self.port)]
        temporary = "temporary" if self._own_folder else ""
        # Closed here once the child has it: only then does the end of the child close the channel.
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [*command, json.dumps(self.config), self.log_level, temporary],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._link = ControlChannel(ours)
        try:
            self.port = int(self._receive_reply(READY_S)["port"])
        # KeyboardInterrupt included: a child that is still starting would outlive the test.
        except BaseException:
            self.kill()
            raise
        return self

    @property
    def running(self) -> bool:
        """Whether it serves, or is paused."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The process."""
        return self._require_running().pid

    def _require_running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker is not running; call start()")
        return self._process

    def _receive_reply(self, timeout_s: float) -> dict[str, Any]:
        """Return the next reply of the child."""
        assert self._link is not None
        try:
            return check_reply(self._link.receive(timeout_s))
        except ChannelClosed:
            code = self._require_running().wait(STOP_S)
            raise RuntimeError(f"the broker's process ended with {code}; see its log above") from None

    def _command(self, **command: Any) -> None:
        self._require_running()
        assert self._link is not None
        self._link.send(**command)
        self._receive_reply(STOP_S)

    def stop(self) -> None:
        """End as on SIGTERM."""
        self.resume()  # a stopped process does not handle SIGTERM
        process = self._require_running()
        assert self._link is not None
        # Announced, so that the child leaves the data: after an unannounced SIGTERM it may be the one to remove it.
        with contextlib.suppress(ChannelClosed):
            self._link.send(do="part")
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        finally:
            self._drop_process()

    def kill(self) -> None:
        """SIGKILL."""
        self._require_running().kill()
        self._require_running().wait()
        self._drop_process()

    def _drop_process(self) -> None:
        self._process = None
        self._paused = False
        if self._link is not None:
            self._link.close()

    def pause(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        process = self._require_running()
        process.send_signal(signal.SIGSTOP)
        self._paused = True
        await_stopped(process.pid)

    def resume(self) -> None:
        """SIGCONT."""
        if self._paused:
            self._require_running().send_signal(signal.SIGCONT)
            self._paused = False


class OtherBroker(Broker):
    """A cluster that was not started by the test: clients and topics, but no method that stops or disturbs it."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.split(",", maxsplit=1)[0].strip().rpartition(":")
        super().__init__(port=int(port), data="")
        self.host = host
        self._bootstrap = bootstrap

    @property
    def bootstrap(self) -> str:
        """The addresses it was created with."""
        return self._bootstrap

    @property
    def running(self) -> bool:
        """False: this object does not own the cluster."""
        return False

    def start(self) -> Self:
        """Do nothing: it is running."""
        return self

    def _refuse(self, *_: object, **__: object) -> None:
        raise RuntimeError(
            f"{self.bootstrap} is not a broker of this test: it is not paused, slowed, killed or stopped"
        )

    stop = kill = pause = resume = slow = refuse = heal = _refuse


@contextlib.contextmanager
def broker(
    *,
    child: bool = False,
    port: int = 0,
    data: str | os.PathLike[str] | None = None,
    config: Mapping[str, Any] | None = None,
) -> Iterator[Broker]:
    """A running broker, in this process or (`child`) in one of its own; `config` are settings by Kafka's names.

    Without `data` its files are in a temporary directory, which is removed at the end.
    """
    created = (ChildBroker if child else InProcessBroker)(port=port, data=data, config=config)
    with created as running:
        yield running
