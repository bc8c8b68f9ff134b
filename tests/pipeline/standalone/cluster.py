"""A standalone master of Spark with two workers, each a process, on this machine; executors with a bare Python.

PySpark's own folder has all it takes. Executors run on a Python that has Spark's modules and pyarrow, and neither klamm
nor what klamm needs: it reads no site-packages, only a folder with a link to pyarrow.
"""

import contextlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pyarrow as pa
import pyspark

SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss1m"
PATIENCE_S = 300


def bare_python(folder):
    """The interpreter that executors are told to run: this one, without what is installed for it."""
    packages = folder / "packages"
    packages.mkdir()
    (packages / "pyarrow").symlink_to(Path(pa.__file__).parent)
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{packages}" exec {sys.executable} -S "$@"\n')
    path.chmod(0o755)
    return path


class Standalone:
    """The master's address, and the processes."""

    def __init__(self, folder):
        self._folder = folder
        self.workers = []
        self.master = ""
        self._all = []

    def _java(self, log, name, *arguments):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
        environment |= {
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": SMALL,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class"), name, *arguments],
                stdout=out,
                stderr=out,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
            )
        self._all.append(process)
        return process

    @staticmethod
    def _wait_for_line(log, pattern, process):
        """What a process says of itself once it is there."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            match = re.search(pattern, log.read_text(errors="replace"))
            if match:
                return match[1]
            assert process.poll() is None, log.read_text(errors="replace")
            time.sleep(0.1)
        raise AssertionError(log.read_text(errors="replace"))

    def start(self):
        log = self._folder / "master.log"
        listening = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = self._java(log, "org.apache.spark.deploy.master.Master", *listening)
        self.master = self._wait_for_line(log, r"Starting Spark master at (spark://\S+)", master)
        for index in range(2):
            resources = ("--cores", "1", "--memory", "600M", "--work-dir", str(self._folder / f"work-{index}"))
            name = "org.apache.spark.deploy.worker.Worker"
            self.workers.append(
                self._java(self._folder / f"worker-{index}.log", name, *listening, *resources, self.master)
            )
        for index, worker in enumerate(self.workers):
            self._wait_for_line(self._folder / f"worker-{index}.log", r"(Successfully registered with master)", worker)

    def executors(self):
        """The executors' processes that run now."""
        children = []
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(worker.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                            children.append(child)
        return children

    def started(self):
        """How many executors were ever started: each leaves a folder."""
        return len(list(self._folder.glob("work-*/app-*/*/stderr")))

    def words(self):
        """What executors wrote, for when something goes wrong."""
        return "\n".join(
            path.read_text(errors="replace")[-4000:] for path in self._folder.glob("work-*/app-*/*/stderr")
        )

    def stop(self):
        for process in reversed(self._all):
            with contextlib.suppress(psutil.NoSuchProcess):
                children = psutil.Process(process.pid).children(recursive=True)
                process.kill()
                for child in children:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
            process.wait(60)


@contextlib.contextmanager
def standalone(folder):
    """A master and two workers of one core each."""
    cluster = Standalone(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
