"""Spark's home as its Python processes would like it: with compiled files instead of archives.

Spark puts `pyspark.zip` of its home before everything else on the path of the Python processes it starts. Modules in an
archive are compiled anew by each of them, which takes twice as long as all the rest of their start, and Spark waits ten
seconds for some and no longer. This home is links to the one there is, with folders in the archives' places.
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
    """Let a Java process that is started meanwhile have such a home, unless a home was chosen by somebody."""
    if _HOME in os.environ:
        yield
        return
    found = _home()
    if found is None:
        yield
        return
    os.environ[_HOME] = found
    try:
        yield
    finally:
        os.environ.pop(_HOME, None)


def _home() -> str | None:
    """The home, made once for an installation and kept in the user's cache; None when there is nowhere to put it."""
    from pyspark.find_spark_home import _find_spark_home  # noqa: PLC0415 - pyspark is an extra
    from pyspark.version import __version__  # noqa: PLC0415

    real = str(_find_spark_home())
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    name = hashlib.sha256(f"{real} {__version__}".encode()).hexdigest()[:16]
    try:
        return cached_home(real, os.path.join(cache, "klamm", f"spark-{name}"))
    except OSError:
        return None


def cached_home(real: str, folder: str) -> str:
    """A folder of links that is there, or is made at once: processes that start together make it together."""
    if not os.path.isdir(folder):
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        draft = tempfile.mkdtemp(prefix=".spark-", dir=os.path.dirname(folder))
        try:
            link_home(real, draft)
            os.rename(draft, folder)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not os.path.isdir(folder):
                raise
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder


def link_home(real: str, folder: str) -> None:
    """Fill a folder with links to a home of Spark, archives of packages that are installed replaced by folders."""
    packages = os.path.dirname(real)
    archives = os.path.join(real, "python", "lib")
    for name in os.listdir(real):
        if name != "python":
            os.symlink(os.path.join(real, name), os.path.join(folder, name))
    lib = os.path.join(folder, "python", "lib")
    os.makedirs(lib)
    for name in os.listdir(archives):
        package = name.partition("-")[0].removesuffix(_ARCHIVE)
        installed = os.path.join(packages, package)
        place = os.path.join(lib, name)
        if name.endswith(_ARCHIVE) and os.path.isdir(installed):
            os.mkdir(place)
            os.symlink(installed, os.path.join(place, package))
        else:
            os.symlink(os.path.join(archives, name), place)
