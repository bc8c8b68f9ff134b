"""Programs around the registry that are built or fetched here, beside those of `toolchain`."""

import shutil
from pathlib import Path

from compat.toolchain import HERE, cached, run_build


def srclient() -> list[str]:
    """srclient, a client of schema registries for Go."""
    here = HERE / "srclient-registry"
    sources = [here / "go.mod", here / "go.sum", here / "main.go"]

    def build(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        run_build(["go", "build", "-mod=readonly", "-o", str(folder / "client"), "."], folder)

    return [str(cached("srclient-registry", sources, build) / "client")]


def compatibility_rules() -> list[str]:
    """Avro's own compatibility rules, and those of Apicurio for JSON Schema."""
    here = HERE / "rules-registry"
    sources = [here / "pom.xml", here / "Rules.java"]

    def build(folder: Path) -> None:
        for source in sources:
            shutil.copy(source, folder)
        run_build(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder / 'libs'}"], folder)
        run_build(["javac", "-cp", "libs/*", "-d", ".", "Rules.java"], folder)

    folder = cached("rules-registry", sources, build)
    return ["java", "-Xmx256m", "-cp", f"{folder}:{folder / 'libs'}/*", "Rules"]
