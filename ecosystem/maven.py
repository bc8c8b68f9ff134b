"""JVM programs: a folder with a pom of pinned coordinates and, where the program is a library, a driver in Java.

Fetched by Maven, compiled by javac, kept in the cache of `compat.toolchain` under the hash of the folder's files.
"""

import shutil
from pathlib import Path

from compat import toolchain
from compat.toolchain import cached, run_build
from ecosystem import manifests

JAVA = Path(__file__).resolve().parent / "java"
# Small programs on few cores: the second compiler costs more than it gives back.
JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true")


def class_path(program: str) -> str:
    """The class path of `java/<program>`: its dependencies, and its sources compiled."""
    folder = JAVA / program
    pom, sources = folder / "pom.xml", sorted(folder.glob("*.java"))

    def build(work: Path) -> None:
        shutil.copy(pom, work / "pom.xml")
        run_build(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work / 'libs'}"], work)
        (work / "classes").mkdir()
        if sources:
            run_build(["javac", "-cp", f"{work / 'libs'}/*", "-d", str(work / "classes"), *map(str, sources)], work)

    made = cached(f"ecosystem-{program}", [pom, *sources], build)
    return f"{made / 'classes'}:{made / 'libs'}/*"


def java_command(
    program: str, main: str, *arguments: str, heap_mb: int = 256, options: tuple[str, ...] = ()
) -> list[str]:
    """The command that runs a class of `java/<program>`; its log goes to standard error."""
    logging = f"-Dlog4j2.configurationFile={toolchain.HERE / 'kafka' / 'log4j2.properties'}"
    jvm = ["java", f"-Xmx{heap_mb}m", *JVM_OPTIONS, logging, *options]
    return [*jvm, "-cp", class_path(program), main, *arguments]


def version(program: str, artifact: str) -> str:
    """The version of a dependency of `java/<program>`."""
    return manifests.maven_version(JAVA / program / "pom.xml", artifact)
