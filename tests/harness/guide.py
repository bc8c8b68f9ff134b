"""A guide as a reader uses it: every block typed in order, in an empty folder, with the commands of this tree.

What a fence means:

    ```console             lines behind "$ " are typed, the others must be in the output; "^C" ends the last service
    ```bash                every line is typed
    ```python              a program, typed into one interpreter per guide; with `def test_` in it a file for pytest
    ```properties, sql, json, yaml with title="NAME"    a file the reader saves
    ```text title="Output" what the block before printed
    ```text                a picture or log lines: not typed

A command that serves or follows (`klamm up`, `klamm server`, `klamm tail`, `spark-class` ...) goes on in a terminal of
its own until "^C" or the end of the guide. Ports are moved: a reader's 9092 may be taken here. Numbers and ids in an
output may differ; `...` stands for anything.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from klamm.net.free_ports import free_port_row

READY = re.compile(r"is ready on|Klamm is ready|are ready|query started|is running|starting Spark")
VARIABLES = r"(?:[A-Z_]+=\S+\s+)*"
SERVICE = re.compile(
    rf"{VARIABLES}(?:klamm\s+(?:up|server|registry|rest|console|tail)\b|klamm\s+.*--(?:follow|watch)\b"
    r"|klamm\s+pipeline\s+(?:run\b(?!.*--once)|serve\b)|spark-class\s)"
)
SPARK_MASTER = "spark-class org.apache.spark.deploy.master.Master"
FILES = {"properties", "sql", "json", "yaml", "ini", "toml"}
TYPED = re.compile(r"^\s*(?:\$ |klamm |kafka-[a-z-]+(?:\.sh)? |make |pip |python )", re.MULTILINE)
FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)(?P<options>[^\n`]*)$")
PORTS = (*range(9092, 9102), 8080, 8081, 8082, 8083, 9404, 7077)
SPARK_DEFAULTS = {
    # Queries of a few rows: time goes into starting and compiling, not into running what was compiled.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}
"""Settings of Spark that a guide may override; no result depends on them."""
PATIENCE_S = 120


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    language: str
    title: str
    text: str
    line: int

    @property
    def commands(self) -> list[tuple[str, list[str]]]:
        """The commands of a shell block, each with the lines the guide shows as its output."""
        commands: list[tuple[str, list[str]]] = []
        lines = iter(self.text.splitlines())
        for line in lines:
            command = line.removeprefix("$ ") if self.language == "console" else line
            if line.strip() == "^C":
                commands.append(("^C", []))
            elif self.language == "console" and not line.startswith("$ "):
                if line.strip():
                    commands[-1][1].append(line)
            elif command.strip() and not command.lstrip().startswith("#"):
                while command.endswith("\\"):
                    command = command[:-1] + next(lines).strip()
                commands.append((command, []))
        return commands


def parse_blocks(page: str) -> list[Block]:
    blocks: list[Block] = []
    lines = page.splitlines()
    start = None
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if match is None:
            continue
        if start is None:
            start, opening = number, match
            continue
        title = re.search(r'title="([^"]*)"', opening["options"])
        indent = len(opening["indent"])
        text = "".join(row[indent:] + "\n" for row in lines[start + 1 : number])
        blocks.append(Block(opening["language"], title[1] if title else "", text, start + 1))
        start = None
    assert start is None, f"a block that begins in line {start + 1} has no end"
    return blocks


@dataclass
class Service:
    """A command that goes on in a terminal of its own."""

    command: str
    process: subprocess.Popen[bytes]
    output: Path

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        announces = re.match(
            rf"{VARIABLES}klamm\s+(up|server|registry|rest|console|pipeline\s+(run|serve))", self.command
        )
        ready = READY if announces else re.compile(r"\S")
        while not ready.search(self.output.read_text()):
            assert self.process.poll() is None, f"{self.command} ended:\n{self.output.read_text()}"
            assert time.monotonic() < deadline, f"{self.command} is not ready:\n{self.output.read_text()}"
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            code = self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.command} does not end on Ctrl-C") from None
        assert code in (0, 130), f"{self.command} ended with {code}:\n{self.output.read_text()}"


SHELL = """
import io, json, sys, traceback
from contextlib import redirect_stdout
for line in sys.stdin:
    output, failure = io.StringIO(), None
    try:
        with redirect_stdout(output):
            exec(compile(json.loads(line), "guide", "exec"), {"__name__": "__main__"})
    except BaseException:
        failure = traceback.format_exc()
    sys.__stdout__.write(json.dumps([output.getvalue(), failure]) + "\\n")
    sys.__stdout__.flush()
"""


class PythonShell:
    """One interpreter for all programs of a guide, each with names of its own: Spark starts once."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._errors = (folder / ".python-errors").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHELL],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )

    def type(self, code: str, where: str) -> str:
        """What a program printed; its failure is the guide's."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(code) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"{where}: the interpreter ended"
        output, failure = json.loads(answer)
        assert failure is None, f"{where}:\n{output}{failure}"
        return output

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            self.process.stdout.close()
            self._errors.close()


@dataclass
class Reader:
    """Types the blocks of one guide into an empty folder."""

    folder: Path
    ports: dict[str, int] = field(default_factory=dict)
    in_checkout: bool = False
    """Whether Python finds the packages that lie in the source tree beside the wheel's."""
    services: list[Service] = field(default_factory=list)
    shell: PythonShell | None = None
    last_output: str = ""

    def __post_init__(self) -> None:
        free = free_port_row("127.0.0.1", len(PORTS))
        self.ports = {str(port): own for port, own in zip(PORTS, free, strict=True)} | self.ports
        spark = self.folder / ".spark"
        spark.mkdir(exist_ok=True)
        (spark / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in SPARK_DEFAULTS.items()))
        venv = str(Path(sys.executable).parent)
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("KLAMM_", "XDG_"))
        } | {
            "HOME": str(self.folder),
            "PATH": f"{venv}{os.pathsep}{os.environ['PATH']}",
            "KLAMM_BOOTSTRAP": f"127.0.0.1:{self.ports['9092']}",
            "KLAMM_REGISTRY": f"http://127.0.0.1:{self.ports['8081']}",
            # A process more for each node of a guide; the guide of the console starts its own.
            "KLAMM_CONSOLE": "0",
            "PYTHONWARNINGS": "default",
            "SPARK_CONF_DIR": str(spark),
            "COLUMNS": "200",
        }
        if self.in_checkout:
            self.environment["PYTHONPATH"] = str(Path(__file__).parents[2])

    def read(self, blocks: list[Block]) -> None:
        try:
            for block in blocks:
                self.use(block)
        except BaseException:
            for service in self.services:
                service.kill()
            raise
        finally:
            if self.shell is not None:
                self.shell.close()
        while self.services:
            self.services.pop().stop()

    def use(self, block: Block) -> None:
        assert block.language, f"line {block.line}: the block has no language"
        if block.language in ("console", "bash", "sh"):
            for command, shown in block.commands:
                self.type(command, shown, block.line)
        elif block.language == "python":
            self.run_program(block)
        elif block.language in FILES:
            assert block.title, f"line {block.line}: give the file a name with title="
            path = self.folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.move_ports(block.text))
        elif block.language == "text":
            assert block.title == "Output" or not TYPED.search(block.text), (
                f"line {block.line}: text is typed by no reader"
            )
            if block.title == "Output":
                compare_output(block.text.splitlines(), self.last_output, f"line {block.line}")
        else:
            raise AssertionError(f"line {block.line}: unknown language {block.language}")

    def type(self, command: str, shown: list[str], line: int) -> None:
        if command == "^C":
            self.wait_for_services()
            self.services.pop().stop()
            return
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            targets = (Path(__file__).parents[2] / "Makefile").read_text()
            assert re.search(rf"^{words[1]}:", targets, re.MULTILINE), f"line {line}: no target {words[1]}"
            return
        if words[:2] == ["pip", "install"]:
            check_extras(words[2:], line)
            return
        typed = self.move_ports(command)
        if re.match(r"klamm\s+up\b(?!.*--port)", typed):
            typed = typed.replace("klamm up", f"klamm up --port {self.ports['9092']}", 1)
        if re.match(r"klamm\s+rest\b(?!.*--port)", typed):
            typed = typed.replace("klamm rest", f"klamm rest --port {self.ports['8082']}", 1)
        if re.match(r"klamm\s+console\b(?!.*--port)", typed):
            typed = typed.replace("klamm console", f"klamm console --port {self.ports['8080']}", 1)
        if re.match(r"klamm\s+registry\b(?!.*--port)", typed):
            typed = typed.replace("klamm registry", f"klamm registry --port {self.ports['8081']}", 1)
        # Its port is no option of the guide's command, so it cannot be moved there.
        typed = typed.replace(SPARK_MASTER, f"{SPARK_MASTER} --port {self.ports['7077']}")
        if SERVICE.match(command):
            self.start(typed)
            if shown:
                self.wait_for_services()
                compare_output(shown, self.shown_ports(self.services[-1].output.read_text()), f"line {line}")
            return
        self.wait_for_services()
        done = subprocess.run(
            ["bash", "-c", typed],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 3,
            check=False,
        )
        self.last_output = self.shown_ports(done.stdout)
        assert done.returncode == 0, f"line {line}: {command}\n{done.stdout}{done.stderr}"
        compare_output(shown, self.shown_ports(done.stdout + done.stderr), f"line {line}")

    def start(self, command: str) -> None:
        output = self.folder / f".terminal-{len(list(self.folder.glob('.terminal-*')))}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                # env, because a command may begin with variables.
                ["bash", "-c", f"exec env {command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.services.append(Service(command, process, output))

    def wait_for_services(self) -> None:
        """Only now: a node of several is not ready before a majority is started."""
        for service in self.services:
            service.wait_until_ready()

    def run_program(self, block: Block) -> None:
        self.wait_for_services()
        code = self.move_ports(block.text)
        if "def test_" in block.text:
            path = self.folder / (block.title or "test_guide.py")
            path.write_text(code)
            self.run_tests(path, block.line)
            return
        if block.title:
            (self.folder / block.title).write_text(code)
        if self.shell is None:
            self.shell = PythonShell(self.folder, self.environment)
        self.last_output = self.shown_ports(self.shell.type(code, f"line {block.line}"))

    def run_tests(self, path: Path, line: int) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-p",
                "no:randomly",
                "-p",
                "no:cacheprovider",
                # Otherwise pytest imports schemathesis, and rewrites the asserts of all of klamm: seconds.
                "-p",
                "no:schemathesis",
                "--assert=plain",
                "--rootdir=.",
                path.name,
            ],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S * 3,
            check=False,
        )
        assert done.returncode == 0, f"line {line}:\n{done.stdout}{done.stderr}"

    def move_ports(self, text: str) -> str:
        ports = r"(?<=:)(?:90\d\d|808\d|5432|9404|7077)\b"
        return re.sub(ports, lambda match: str(self.ports.get(match[0], match[0])), text)

    def shown_ports(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = text.replace(f":{port}", f":{shown}")
        return text


def compare_output(shown: list[str], output: str, where: str) -> None:
    """Every line the guide shows is in the output, in order; numbers and ids may differ."""
    rows = iter([_normalize(row) for row in output.splitlines()])
    for line in shown:
        pattern = ".*".join(re.escape(part) for part in _normalize(line).split("..."))
        if not pattern:
            continue
        assert any(re.fullmatch(pattern, row) for row in rows), f"{where}: not printed: {line}\nprinted:\n{output}"


def check_extras(words: list[str], line: int) -> None:
    """An installation is not run here; the extras it names must be there."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for word in words:
        for name in re.findall(r"(?:klamm|\.)\[([^\]]*)\]", word):
            for extra in name.split(","):
                assert extra in project["optional-dependencies"], f"line {line}: no extra {extra}"


def _normalize(row: str) -> str:
    row = re.sub(r"\b[A-Za-z0-9_-]{22}\b", "ID", row.strip())
    row = re.sub(r"\d+(?:[.,:]\d+)*", "0", row)
    return re.sub(r"\s+", " ", row)
