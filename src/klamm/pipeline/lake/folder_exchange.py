"""One folder for another at once, so that whoever lists it sees the old files or the new ones, never both nor none."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from klamm.model.errors import ConfigError

_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2
_CANNOT: Final = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)


def exchange_folders(one: str, other: str) -> None:
    """Swap two paths of one file system, as Linux's renameat2 does; ConfigError where that cannot be done."""
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameat2", None)
    if call is None:
        raise ConfigError("this system has no renameat2, which swaps two folders at once; compaction needs it")
    if call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE):
        code = ctypes.get_errno()
        if code in _CANNOT:
            raise ConfigError(f"the file system of {other} cannot swap two folders at once; compaction needs that")
        raise OSError(code, os.strerror(code), one, None, other)
