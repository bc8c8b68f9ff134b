"""The node and the pipeline as child processes, in sessions of their own: Ctrl-C is for the demo, which ends them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

SQL: Final = Path(__file__).with_name("bank.sql")
_KLAMM: Final = Path(sys.executable).with_name("klamm")
_NODE_S: Final = 60.0
_END_S: Final = 20.0
_TAIL: Final = 15
_TAIL_BYTES: Final = 65536
_RESTARTS: Final = 5
_USAGE: Final = 2
_REPEAT_S: Final = 0.01
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Failed(Exception):
    """The demo cannot go on; the message says why."""


class Interrupts:
    """Ctrl-C, TERM and HUP. They wait while a child is being started, so that no child is forgotten."""

    def __init__(self) -> None:
        self.closing = threading.Event()
        """Set by Ctrl-C while it only closes the bank."""
        self.ctrl_c_closes = False
        self._is_delayed = False
        self._is_pending = False
        self._ending: int | None = None
        """The signal that ends the demo; later ones are ignored, so that the clean-up is not interrupted."""

    def install(self) -> None:
        """Handle the signals; only the main thread can install handlers."""
        for number in _SIGNALS:
            signal.signal(number, self.handle)
        signal.signal(signal.SIGALRM, self._repeat)
        sys.unraisablehook = self._report_unraisable

    def ignore(self) -> None:
        """Ignore signals from now on: the demo is ending."""
        for number in (*_SIGNALS, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)

    def handle(self, number: int, _: Any = None) -> None:
        """Close the bank, or end the demo by an exception."""
        if self._ending is not None:
            return
        if self.ctrl_c_closes and number == signal.SIGINT:
            self.closing.set()
        elif self._is_delayed:
            self._is_pending = True
        else:
            self._end(number)

    def _end(self, number: int) -> NoReturn:
        self._ending = number
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    def _report_unraisable(self, problem: Any) -> None:
        # A signal that arrives during a destructor or a weak reference's callback raises there, and Python drops the
        # exception. The timer raises it again, outside of the callback.
        if self._ending is not None and isinstance(problem.exc_value, KeyboardInterrupt | SystemExit):
            signal.setitimer(signal.ITIMER_REAL, _REPEAT_S)
        else:
            sys.__unraisablehook__(problem)

    def _repeat(self, _number: int, _: Any) -> None:
        if self._ending is not None:
            self._end(self._ending)

    @contextlib.contextmanager
    def delay(self) -> Iterator[None]:
        """Let signals wait until the block has ended."""
        self._is_delayed = True
        try:
            yield
        finally:
            self._is_delayed = False
            if self._is_pending:
                self._end(signal.SIGINT)


class Child:
    """A process whose output is in a file; all that it started ends with it."""

    def __init__(self, name: str, command: list[str], folder: Path, interrupts: Interrupts) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._folder = folder
        self._interrupts = interrupts
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with self.log.open("ab") as log, self._interrupts.delay():
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def code(self) -> int | None:
        return self._process.poll() if self._process else None

    def output(self) -> list[str]:
        """The last lines of its output."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(log.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
                return log.read().decode(errors="replace").splitlines()
        except FileNotFoundError:
            return []

    def log_tail(self) -> str:
        """What to show of its output when it failed."""
        return "\n".join(self.output()[-_TAIL:])

    def end(self, timeout_s: float = _END_S) -> None:
        """Terminate it, then kill it with all processes that it started."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout_s)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Node(Child):
    """`klamm up` on a free port."""

    def __init__(self, folder: Path, interrupts: Interrupts) -> None:
        command = [str(_KLAMM), "up", "--data", str(folder / "data"), "--port", "0", "--quiet", "--no-console"]
        super().__init__("node", command, folder, interrupts)
        self.address = ""

    def wait_ready(self) -> str:
        """Where it serves, once it does."""
        deadline = time.monotonic() + _NODE_S
        while time.monotonic() < deadline:
            for line in self.output():
                if line.startswith("Klamm is ready on "):
                    self.address = line.rpartition(" ")[2]
                    return self.address
            if not self.running:
                break
            time.sleep(0.05)
        raise Failed(f"the node did not start:\n{self.log_tail()}")


class Registry(Child):
    """`klamm registry` on a free port."""

    def __init__(self, bootstrap: str, folder: Path, interrupts: Interrupts) -> None:
        command = [str(_KLAMM), "registry", "--bootstrap-server", bootstrap, "--port", "0"]
        super().__init__("registry", command, folder, interrupts)

    def wait_ready(self) -> str:
        """Where it serves, once it does."""
        deadline = time.monotonic() + _NODE_S
        while time.monotonic() < deadline:
            for line in self.output():
                if line.startswith("Klamm registry is ready on "):
                    return line.removeprefix("Klamm registry is ready on ").partition(",")[0]
            if not self.running:
                break
            time.sleep(0.05)
        raise Failed(f"the registry did not start:\n{self.log_tail()}")


class Pipeline(Child):
    """`klamm pipeline run bank.sql`; started again when it dies, it goes on where it was."""

    def __init__(self, bootstrap: str, registry: str, folder: Path, interrupts: Interrupts) -> None:
        # Java's flags: a small heap, and no time spent on making code fast that runs for a minute.
        java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={folder / 'tmp'}"
        settings = {
            "spark.driver.extraJavaOptions": java,
            "spark.driver.memory": "1g",
            "spark.local.dir": str(folder / "tmp"),
            "spark.sql.shuffle.partitions": "2",
            # A few hundred rows a second: compiling the queries would take longer than running them does.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            "spark.sql.adaptive.enabled": "false",
            "spark.log.level": "OFF",
            # Spark gives a Python process ten seconds to start: on a busy machine it takes some tries.
            "restarts": "100",
            "registry": registry,
        }
        command = [str(_KLAMM), "pipeline", "run", str(SQL), "--bootstrap-server", bootstrap, "--master", "local[2]"]
        command += ["--home", str(folder / "pipelines"), "--no-progress"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        super().__init__("pipeline", command, folder, interrupts)
        self._status = folder / "pipelines" / "bank" / "status.json"
        self._restarts = _RESTARTS

    def status(self) -> dict[str, Any]:
        """Its status, as `klamm pipeline show` prints it; empty before it has started."""
        try:
            status: dict[str, Any] = json.loads(self._status.read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return status if status.get("pid") == self.pid else {}

    def stage(self) -> str:
        """What it is doing until its queries run."""
        lines = self.output()
        if any(line.startswith("created topic") for line in lines):
            return "its queries begin"
        return "Java" if any(line == "starting Spark" for line in lines) else "Python"

    def count_restarts(self) -> int:
        """How often its queries were started again."""
        return sum(query.get("failures", 0) for query in self.status().get("queries", {}).values())

    def keep_running(self) -> str | None:
        """Start it again when it died; returns a note of that, or None."""
        if self.running:
            return None
        lines = self.output()
        if self._restarts <= 0 or self.code == _USAGE:
            raise Failed(f"the pipeline does not run:\n{self.log_tail()}")
        self._restarts -= 1
        self.start()
        return f"the pipeline ended ({lines[-1] if lines else 'without output'}) and is started again"

    def finish(self) -> None:
        """Ask it to finish its batches and end."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
