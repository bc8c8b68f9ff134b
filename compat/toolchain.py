"""Find what the suite needs on the machine, fetch the rest by coordinates, and keep it outside the tree.

Every download or build is stored under a name that contains the hash of its manifest and sources, is made in a
temporary folder and renamed when whole: a cut run leaves nothing half-made, a changed manifest makes a new one.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
FETCH_TIMEOUT_S = 900


class ToolMissing(Exception):
    """One line for the user: what is missing and how to get it."""


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "klamm" / "compat"


def require(*names: str, what: str = "make compat") -> None:
    """Refuse to begin with a single line that names everything missing."""
    missing = [name for name in names if name != "kcat" and shutil.which(name) is None]
    if "java" in names and "java" not in missing and _java_major() < 17:
        missing.append("java 17 or newer")
    if "kcat" in names and shutil.which("kcat") is None and not _install_kcat():
        missing.append("kcat (Debian and Ubuntu: apt-get install kcat; macOS: brew install kcat)")
    if missing:
        raise ToolMissing(f"{what} needs " + ", ".join(missing) + " on the PATH")


def kafka_jars() -> Path:
    """The folder with Apache Kafka's jars, by Maven coordinates."""
    pom = HERE / "kafka" / "pom.xml"

    def build(folder: Path) -> None:
        shutil.copy(pom, folder / "pom.xml")
        run_build(
            ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"],
            folder,
        )

    return cached("kafka", [pom], build) / "libs"


def spark_jars() -> list[Path]:
    """Spark's Kafka connector, by Maven coordinates."""
    pom = HERE / "spark" / "pom.xml"

    def build(folder: Path) -> None:
        shutil.copy(pom, folder / "pom.xml")
        run_build(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"], folder)

    return sorted((cached("spark", [pom], build) / "libs").glob("*.jar"))


def java_classes() -> Path:
    """The suite's own Java client, compiled against the same jars."""
    sources = sorted((HERE / "java").glob("*.java"))

    def build(folder: Path) -> None:
        run_build(["javac", "-cp", f"{kafka_jars()}/*", "-d", str(folder), *map(str, sources)], folder)

    return cached("java", [*sources, HERE / "kafka" / "pom.xml"], build)


def java_command(*, heap_mb: int = 512, classes: bool = False, log_level: str = "warn") -> list[str]:
    class_path = f"{java_classes()}:{kafka_jars()}/*" if classes else f"{kafka_jars()}/*"
    return [
        "java",
        f"-Xms{heap_mb}m",
        f"-Xmx{heap_mb}m",
        "-XX:+UseG1GC",
        f"-Dlog4j2.configurationFile={HERE / 'kafka' / 'log4j2.properties'}",
        f"-Dklamm.compat.log={log_level}",
        "-cp",
        class_path,
    ]


def go_program() -> Path:
    """The franz-go client as one binary."""
    return build_go("go", "client")


def go_logins() -> Path:
    """The logins of franz-go and sarama, compiled; the module's hashes are pinned."""
    return build_go("go-logins", "logins")


def js_logins() -> list[str]:
    """The logins of kafkajs."""
    return ["node", str(Path(js_program()[1]).with_name("logins.js"))]


def js_program() -> list[str]:
    """The kafkajs client: a script beside its node_modules."""
    return ["node", str(install_js("js") / "client.js")]


def build_go(name: str, program: str) -> Path:
    """The program of the Go module in the folder `name`."""
    here = HERE / name
    sources = [here / "go.mod", here / "go.sum", *sorted(here.glob("*.go"))]
    command = ["go", "build", "-mod=readonly", "-o", program, "."]
    return copy_and_build(name, sources, command) / program


def install_js(name: str) -> Path:
    """The scripts of the folder `name`, beside their node_modules."""
    sources = [HERE / name / "package.json", *sorted((HERE / name).glob("*.js"))]
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    return copy_and_build(name, sources, command)


def copy_and_build(name: str, sources: list[Path], *commands: list[str]) -> Path:
    """The folder with these sources in which the commands have run, now or in an earlier run."""

    def build(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        for command in commands:
            run_build(command, folder)

    return cached(name, sources, build)


def cached(name: str, sources: list[Path], build: Callable[[Path], None]) -> Path:
    """The folder `build` filled from these sources, now or in an earlier run."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    target = cache_dir() / f"{name}-{digest.hexdigest()[:16]}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    print(f"compat: preparing {name} (once, kept in the cache)", flush=True)
    work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=target.parent))
    try:
        build(work)
        try:
            work.rename(target)
        except OSError:
            if not target.exists():  # otherwise another run was quicker, and its copy is as good
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def run_build(command: list[str], cwd: Path) -> None:
    # `make` exports the constraints of Klamm's own environment; what is built here has pins of its own.
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise ToolMissing(f"{' '.join(command[:2])} failed:\n{(done.stdout + done.stderr)[-4000:]}")


def _java_major() -> int:
    text = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', text)
    return int(match.group(1)) if match else 0


def _install_kcat() -> bool:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    print("compat: installing kcat with apt-get", flush=True)
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "kcat"]):
        subprocess.run(command, capture_output=True, check=False, timeout=FETCH_TIMEOUT_S)
    return shutil.which("kcat") is not None
