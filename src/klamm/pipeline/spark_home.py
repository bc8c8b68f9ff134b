"""A SPARK_HOME with folders instead of zip archives, so that Spark's Python processes start fast.

Spark puts `pyspark.zip` of its home first on the path of the Python processes it starts. Python caches no byte code for
modules in a zip, so every process compiles them again, which is two thirds of its start, and Spark gives some of them
only ten seconds. This home links to the real one, with folders in place of the archives.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_HOME: Final = "SPARK_HOME"
_ARCHIVE: Final = ".zip"


@contextmanager
def unpacked_spark_home() -> Iterator[None]:
    """Set SPARK_HOME while the JVM starts, unless it is set already."""
    if _HOME in os.environ:
        yield
        return
    home = _home()
    if home is None:
        yield
        return
    os.environ[_HOME] = home
    try:
        yield
    finally:
        os.environ.pop(_HOME, None)


def _home() -> str | None:
    """Return the home, created once per installation in the user's cache; None when the cache is not writable."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - pyspark is an extra
    from pyspark.version import __version__  # noqa: PLC0415

    spark_home = str(_find_spark_home())
    cache_folder = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # An upgrade of PySpark in place gets a new home, too: the version is part of the name.
    name = hashlib.sha256(f"{spark_home} {__version__}".encode()).hexdigest()[:16]
    try:
        return cached_home(spark_home, os.path.join(cache_folder, "klamm", f"spark-{name}"))
    except OSError:
        return None


def cached_home(spark_home: str, folder: str) -> str:
    """Return the folder of links, created atomically when it is not there: processes may start at the same time."""
    if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        draft = tempfile.mkdtemp(prefix=".spark-", dir=os.path.dirname(folder))
        try:
            link_home(spark_home, draft)
            os.rename(draft, folder)
        except OSError:  # another process has renamed its own folder first
            shutil.rmtree(draft, ignore_errors=True)
            if not os.path.isdir(folder):
                raise
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")  # whose code would run here
    return folder


def link_home(spark_home: str, folder: str) -> None:
    """Fill a folder with links to a Spark home; archives of installed packages become folders."""
    packages = os.path.dirname(spark_home)
    archives = os.path.join(spark_home, "python", "lib")
    for name in os.listdir(spark_home):
        if name != "python":
            os.symlink(os.path.join(spark_home, name), os.path.join(folder, name))
    lib = os.path.join(folder, "python", "lib")
    os.makedirs(lib)
    for name in os.listdir(archives):
        package = name.partition("-")[0].removesuffix(_ARCHIVE)
        installed = os.path.join(packages, package)
        target = os.path.join(lib, name)
        # A folder with a link to the package works like the archive: both go on sys.path under this name.
        if name.endswith(_ARCHIVE) and os.path.isdir(installed):
            os.mkdir(target)
            os.symlink(installed, os.path.join(target, package))
        else:
            os.symlink(os.path.join(archives, name), target)
