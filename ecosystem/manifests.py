"""The versions of the programs, read from the manifests that fetch them: a version is written once."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

HERE = Path(__file__).resolve().parent
_POM = {"m": "http://maven.apache.org/POM/4.0.0"}


class NotInManifest(Exception):
    """The manifest names no such artifact, module or package."""


def maven_version(pom: Path, artifact: str) -> str:
    """The version of a dependency in a pom, with `${...}` properties filled in."""
    root = ET.parse(pom).getroot()
    properties = {element.tag.partition("}")[2]: element.text or "" for element in root.findall("m:properties/*", _POM)}
    for dependency in root.findall(".//m:dependency", _POM):
        if dependency.findtext("m:artifactId", "", _POM) == artifact:
            version = dependency.findtext("m:version", "", _POM)
            return re.sub(r"\$\{([^}]+)\}", lambda name: properties[name.group(1)], version)
    raise NotInManifest(f"{pom} names no {artifact}")


def go_version(go_mod: Path, module: str) -> str:
    """The version of a module that a go.mod requires, without the leading v."""
    match = re.search(rf"^\s*(?:require\s+)?{re.escape(module)}\s+v(\S+)", go_mod.read_text(), re.MULTILINE)
    if match is None:
        raise NotInManifest(f"{go_mod} requires no {module}")
    return match.group(1)


def pip_version(requirements: Path, package: str) -> str:
    """The version of a package pinned by `==` in a requirements or constraints file."""
    pattern = rf"^{re.escape(package)}(?:\[[^]]*\])?==([^\s;]+)"
    match = re.search(pattern, requirements.read_text(), re.MULTILINE | re.IGNORECASE)
    if match is None:
        raise NotInManifest(f"{requirements} pins no {package}")
    return match.group(1)
