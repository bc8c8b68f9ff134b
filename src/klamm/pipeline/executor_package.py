"""Ships the package to Spark's executors, whose Python does not have klamm.

The archive is a file of the job (`SparkContext.addArchive`), so it works on standalone masters, YARN and Kubernetes,
and executors that join later get it too. Spark unpacks it into a folder that its Python processes import from. A zip on
the path (`addPyFile`) would be simpler, but compiled modules cannot be imported from one. A Python of another platform
ignores the compiled kernels and runs their interpreted form.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import klamm
from klamm.model.errors import ConfigError
from klamm.pipeline.executor_check import CARRIED, PACKAGES, platform_tag

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "klamm"
_SERVER_PACKAGES: Final = frozenset(
    ("cli", "testing", "server", "controller", "coordinator", "replication", "raft", "metadata", "storage", "net")
)
"""Packages of the server, which no client imports."""
_EXCLUDED: Final = re.compile(r"(^|/)(__pycache__|_cffi\.|\.\.)|\.(pyc|pyi|pxd|c|h)$")
"""Caches, headers, scripts outside of the library, and zstandard's backend for PyPy."""


def is_local(master: str) -> bool:
    """Whether a master runs its tasks on the driver's machine, with the driver's interpreter."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def ship_package(spark: SparkSession) -> bool:
    """Send the package to the executors of a session, once; return False when they have it."""
    context = _context(spark)
    if context is None or is_local(context.master):
        return False
    if any(archive.endswith(f"#{NAME}") for archive in context.listArchives):
        return False
    path = _archive_path(f"{NAME}-{klamm.__version__}.zip")
    write_archive(path)
    # The fragment is the folder's name: unpacked as "klamm" in the working directory, it is an importable package.
    context.addArchive(f"{path}#{NAME}")
    # The Python process that plans a stream runs beside the driver, in a working directory without the archive.
    python_path = context.environment.get("PYTHONPATH")
    context.environment["PYTHONPATH"] = os.pathsep.join([_folder(), python_path] if python_path else [_folder()])
    return True


def ship_module(spark: SparkSession, name: str) -> bool:
    """Send a user's module, or the package it is in, to the executors; return False when there is nothing to send.

    An installed module must be installed on the executors, too. Call this before the function is registered: Spark
    binds a function to the files that the job has at that time.
    """
    context = _context(spark)
    if context is None:
        return False
    # A module of a package cannot be imported without the package around it.
    top = name.partition(".")[0]
    spec = find_spec(top)
    if spec is None or spec.origin is None or _is_installed(spec.origin):
        return False
    if is_local(context.master) and _is_on_worker_path(spec.origin, package=bool(spec.submodule_search_locations)):
        return False
    if not spec.submodule_search_locations:
        context.addPyFile(spec.origin)
        return True
    path = _archive_path(f"{top}.zip")
    folder = os.path.dirname(spec.origin)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for relative in _files(folder):
            archive.write(os.path.join(folder, relative), f"{top}/{relative}")
    context.addPyFile(path)
    return True


def write_archive(path: str) -> None:
    """Write the archive: this package without its server, and the packages it needs."""
    package_folder = os.path.dirname(os.path.abspath(klamm.__file__))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for relative in _files(package_folder):
            if relative.partition("/")[0] not in _SERVER_PACKAGES:
                archive.write(os.path.join(package_folder, relative), relative)
        for package in PACKAGES:
            for source, relative in _files_of(package):
                archive.write(source, f"{CARRIED}/{platform_tag()}/{relative}")


def _context(spark: SparkSession) -> Any:
    """Return the session's context; None for Spark Connect, whose server distributes artifacts itself."""
    return getattr(spark, "sparkContext", None)


def _folder() -> str:
    """Return the folder where Spark keeps the driver's files while it runs."""
    from pyspark import SparkFiles  # noqa: PLC0415 - pyspark is an extra

    return str(SparkFiles.getRootDirectory())


def _archive_path(name: str) -> str:
    """Return a path for a file that stays as long as the session: executors that join late still fetch it."""
    folder = os.path.join(_folder(), "packed")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)


def _files(folder: str) -> Iterator[str]:
    for root, folders, names in os.walk(folder):
        # In a fixed order, so that the same package makes the same archive.
        folders.sort()
        for name in sorted(names):
            relative = os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")
            if not _EXCLUDED.search(relative):
                yield relative


def _files_of(package: str) -> Iterator[tuple[str, str]]:
    """Yield the files of an installed package, as path and as path relative to site-packages."""
    try:
        distribution = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{package} is not installed: pip install --force-reinstall klamm") from None
    for file in distribution.files or ():
        relative = file.as_posix()
        source = str(file.locate())
        if not _EXCLUDED.search(relative) and os.path.isfile(source):
            yield source, relative


def _is_on_worker_path(path: str, *, package: bool) -> bool:
    """Whether Python processes of a session on this machine import a module: they have its environment and folder."""
    folder = os.path.dirname(os.path.dirname(path) if package else path)
    folders = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return os.path.realpath(folder) in {os.path.realpath(worker_folder) for worker_folder in folders}


def _is_installed(path: str) -> bool:
    """Whether a module is part of Python or of an installed package."""
    homes = {sysconfig.get_path(scheme) for scheme in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(os.path.realpath(path).startswith(os.path.realpath(home) + os.sep) for home in homes if home) or (
        path in ("built-in", "frozen") or os.path.realpath(path).startswith(os.path.realpath(sys.base_prefix) + "/lib/")
    )
