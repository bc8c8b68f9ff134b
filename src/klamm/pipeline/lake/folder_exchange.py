"""Exchanges two folders atomically: a reader that lists one sees the old files or the new ones, never both nor none."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

from klamm.model.errors import ConfigError

_AT_FDCWD: Final = -100
# RENAME_EXCHANGE of linux/fs.h; the kernel swaps the two names in one step.
_EXCHANGE: Final = 2
# EINVAL: the file system does not support the flag (renameat2(2)).
_NOT_SUPPORTED: Final = (errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP)


def exchange_folders(folder: str, other: str) -> None:
    """Exchange two paths of one file system by Linux's renameat2; ConfigError where that is not supported."""
    # use_errno keeps the call's errno from calls that the interpreter makes afterwards.
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "renameat2", None)
    if call is None:
        raise ConfigError("this system has no renameat2, which exchanges two folders atomically; compaction needs it")
    if call(_AT_FDCWD, os.fsencode(folder), _AT_FDCWD, os.fsencode(other), _EXCHANGE):
        code = ctypes.get_errno()
        if code in _NOT_SUPPORTED:
            raise ConfigError(f"the file system of {other} cannot exchange two folders atomically; compaction needs it")
        raise OSError(code, os.strerror(code), folder, None, other)
