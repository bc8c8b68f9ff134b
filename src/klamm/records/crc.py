"""CRC-32C, the checksum of every batch: one name, so the library behind it can change.

`crc32c(data, value=0)` takes any contiguous buffer without copying it and continues from `value`.

The crc32c package imports its command line and the package metadata reader, 40 ms and 6 MB that a node would pay at
every start for one C function; so the extension module is loaded by itself, and the package only if that fails.
"""

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec

Crc32c = Callable[..., int]


def _load() -> Crc32c:
    package = PathFinder.find_spec("crc32c")
    extension = PathFinder.find_spec("_crc32c", package.submodule_search_locations) if package else None
    if extension is None or extension.loader is None:
        from crc32c import crc32c as whole_package  # noqa: PLC0415

        return whole_package
    module = module_from_spec(extension)
    extension.loader.exec_module(module)
    function: Crc32c = module.crc32c
    return function


crc32c = _load()
