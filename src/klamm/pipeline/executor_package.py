"""Bringing the package to Spark's executors: they have a Python of their own, without klamm.

An archive goes the way of every file of a job (`SparkContext.addArchive`), so it is the same for standalone masters,
YARN and Kubernetes, and executors that join later get it too. Spark unpacks it into a folder that its Python processes
import from. A zip that is imported as it is would be simpler, but compiled modules cannot be loaded out of one. Pythons
of another platform pass over the compiled kernels and run their Python form.
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
_LEFT_OUT: Final = frozenset(
    ("cli", "testing", "server", "controller", "coordinator", "replication", "raft", "metadata", "storage", "net")
)
"""Rooms that no client imports."""
_NO_USE: Final = re.compile(r"(^|/)(__pycache__|_cffi\.|\.\.)|\.(pyc|pyi|pxd|c|h)$")
"""Caches, headers, scripts outside of the library, and the part of zstandard that is for PyPy."""


def is_local(master: str) -> bool:
    """Whether a master's workers are children of the driver, on its own interpreter."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def ship_package(spark: SparkSession) -> bool:
    """Give the package to the executors of a session, once; False when they have it anyway."""
    context = _context(spark)
    if context is None or is_local(context.master):
        return False
    if any(listArchive.endswith(f"#{NAME}") for listArchive in context.listArchives):
        return False
    path = _packed(f"{NAME}-{klamm.__version__}.zip")
    write_archive(path)
    context.addArchive(f"{path}#{NAME}")
    # The process that plans a stream runs beside the driver and looks into a folder of its own, where no archive is.
    known = context.environment.get("PYTHONPATH")
    context.environment["PYTHONPATH"] = os.pathsep.join([_folder(), known] if known else [_folder()])
    return True


def ship_module(spark: SparkSession, name: str) -> bool:
    """Give a user's own module, or the package it is in, to the executors; what is installed must be there.

    To be called before the function is made known to Spark: from then on it is bound to the files there were.
    """
    context = _context(spark)
    if context is None or is_local(context.master):
        return False
    top = name.partition(".")[0]
    found = find_spec(top)
    if found is None or found.origin is None or _is_installed(found.origin):
        return False
    if not found.submodule_search_locations:
        context.addPyFile(found.origin)
        return True
    path = _packed(f"{top}.zip")
    folder = os.path.dirname(found.origin)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for relative in _files(folder):
            archive.write(os.path.join(folder, relative), f"{top}/{relative}")
    context.addPyFile(path)
    return True


def write_archive(path: str) -> None:
    """Write the archive: the package as it is here, and what it needs."""
    home = os.path.dirname(os.path.abspath(klamm.__file__))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1, strict_timestamps=False) as archive:
        for relative in _files(home):
            if relative.partition("/")[0] not in _LEFT_OUT:
                archive.write(os.path.join(home, relative), relative)
        for package in PACKAGES:
            for source, relative in _files_of(package):
                archive.write(source, f"{CARRIED}/{platform_tag()}/{relative}")


def _context(spark: SparkSession) -> Any:
    """The session's context; sessions of Spark Connect have none, and their server has its own ways."""
    return getattr(spark, "sparkContext", None)


def _folder() -> str:
    """Where Spark keeps the driver's files for as long as it runs."""
    from pyspark import SparkFiles  # noqa: PLC0415 - pyspark is an extra

    return str(SparkFiles.getRootDirectory())


def _packed(name: str) -> str:
    """A place for a file that executors fetch whenever they come, beside what Spark itself copies and unpacks."""
    folder = os.path.join(_folder(), "packed")
    os.makedirs(folder, exist_ok=True)
    return os.path.join(folder, name)


def _files(folder: str) -> Iterator[str]:
    for here, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            relative = os.path.relpath(os.path.join(here, name), folder).replace(os.sep, "/")
            if not _NO_USE.search(relative):
                yield relative


def _files_of(package: str) -> Iterator[tuple[str, str]]:
    """The files of an installed package: where they are, and their places beside it."""
    try:
        found = metadata.distribution(package)
    except metadata.PackageNotFoundError:
        raise ConfigError(f"{package} is not installed: pip install --force-reinstall klamm") from None
    for file in found.files or ():
        relative = file.as_posix()
        source = str(file.locate())
        if not _NO_USE.search(relative) and os.path.isfile(source):
            yield source, relative


def _is_installed(path: str) -> bool:
    """Whether a module is part of Python or of a package that pip installed."""
    homes = {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(os.path.realpath(path).startswith(os.path.realpath(home) + os.sep) for home in homes if home) or (
        path in ("built-in", "frozen") or os.path.realpath(path).startswith(os.path.realpath(sys.base_prefix) + "/lib/")
    )
