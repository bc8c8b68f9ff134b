"""Programs around the registry that are built or fetched here; `toolchain` has those around the broker."""

import sys

from compat.toolchain import HERE, build_go, copy_and_build, install_js


def go_registry() -> list[str]:
    """franz-go's client of a schema registry."""
    return [str(build_go("go-registry", "client"))]


def srclient() -> list[str]:
    """srclient, a client of schema registries for Go."""
    return [str(build_go("srclient-registry", "client"))]


def java_registry() -> list[str]:
    """Confluent's client of a schema registry for Java."""
    return _build_java("java-registry", "Registry")


def compatibility_rules() -> list[str]:
    """Avro's own compatibility rules, and those of Apicurio for JSON Schema."""
    return _build_java("rules-registry", "Rules")


def _build_java(name: str, program: str) -> list[str]:
    """The command of a Java program of one file and the jars it names."""
    sources = [HERE / name / "pom.xml", HERE / name / f"{program}.java"]
    folder = copy_and_build(
        name,
        sources,
        ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"],
        ["javac", "-cp", "libs/*", "-d", ".", f"{program}.java"],
    )
    return ["java", "-Xmx256m", "-cp", f"{folder}:{folder / 'libs'}/*", program]


def python_registry() -> list[str]:
    """python-schema-registry-client, which does not share the packages of this environment."""
    here = HERE / "python-registry"
    # Beside the script, which finds them there before those of this environment.
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", ".", "-r", "requirements.txt"]
    folder = copy_and_build("python-registry", [here / "requirements.txt", here / "client.py"], command)
    return [sys.executable, str(folder / "client.py")]


def js_registry() -> list[str]:
    """Confluent's client of a schema registry for JavaScript."""
    return ["node", str(install_js("js-registry") / "client.js")]
