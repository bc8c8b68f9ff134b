"""`klamm` with a disk that can be made to fail: a file beside the node's data selects the fault.

    python -m harness.faulty_node server FILE.properties

`no-space` lets no write through, `bad-sync` fails every sync; the faults end when the file is removed.
"""

import errno
import os
import sys

from klamm.cli.main import main
from klamm.storage.disk import Disk


def fault_file(folder: str, fault: str) -> str:
    """The file whose presence is the fault."""
    return os.path.join(folder, f"fault-{fault}")


def _install(folder: str) -> None:
    no_space, bad_sync = fault_file(folder, "no-space"), fault_file(folder, "bad-sync")
    for name in ("pwritev", "pwrite", "posix_fallocate"):
        setattr(Disk, name, staticmethod(_failing(getattr(Disk, name), no_space, errno.ENOSPC)))
    for name in ("fsync", "fdatasync"):
        setattr(Disk, name, staticmethod(_failing(getattr(Disk, name), bad_sync, errno.EIO)))


def _failing(real, flag: str, code: int):
    def call(*args, **kwargs):
        if os.path.exists(flag):
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    return call


if __name__ == "__main__":
    _install(os.path.dirname(sys.argv[2]))
    main()
