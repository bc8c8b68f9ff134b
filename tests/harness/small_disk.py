"""A file system of a few megabytes, and a `klamm server` that keeps its data there: a disk that is really full.

The file system is a tmpfs in a mount namespace of its own, kept alive by a process that waits, so that nodes come and
go on it (`unshare -m` for root, `unshare -rm` for other users). Where the system allows no namespaces, a small
/dev/shm will do, as containers have it; without that either, `SmallDisk` says what it needs.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from harness.process import KLAMM, KlammProcess
from klamm.net.free_ports import free_ports

MB = 1 << 20
_SMALL_SHM = 256 * MB
_SHM = Path("/dev/shm")
_PIECE = 64 << 10


class SmallDisk:
    """So many megabytes: `path` is where processes started with `prefix` see them, `outside` where others do."""

    def __init__(self, path: Path, size_mb: int) -> None:
        self.path = path
        self.outside = path
        self.prefix: list[str] = []
        self._size_mb = size_mb
        self._holder: subprocess.Popen[bytes] | None = None
        self._shm: Path | None = None

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        refusal = self._in_a_namespace()
        if refusal and not self._in_shared_memory():
            raise AssertionError(
                "a test of full disks needs a small file system: let `unshare -rm mount -t tmpfs` be allowed "
                f"({refusal}), or /dev/shm be at most {_SMALL_SHM // MB} MB"
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._holder is not None:
            self._holder.communicate()  # it ends when its standard input is closed
        if self._shm is not None:
            shutil.rmtree(self._shm, ignore_errors=True)

    def _in_a_namespace(self) -> str:
        """Mount it in a namespace; returns the error of the system if that is not allowed."""
        refusal = ""
        for way in ["-m", "-rm"] if os.geteuid() == 0 else ["-rm"]:  # root in a container may lack the capability
            refusal = self._mounted(way)
            if not refusal:
                break
        return refusal

    def _mounted(self, way: str) -> str:
        mount = 'mount -t tmpfs -o "size=$1m" klamm "$0" && echo mounted && exec cat'
        try:
            holder = subprocess.Popen(
                ["unshare", way, "sh", "-c", mount, str(self.path), str(self._size_mb)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        except FileNotFoundError as error:
            return str(error)
        assert holder.stdout is not None
        if holder.stdout.readline() != b"mounted\n":
            _, errors = holder.communicate()
            return errors.decode().strip() or f"unshare {way} ended with {holder.returncode}"
        self._holder = holder
        self.outside = Path(f"/proc/{holder.pid}/root") / self.path.relative_to("/")
        user = ["-U", "--preserve-credentials"] if "r" in way else []
        self.prefix = ["nsenter", "-t", str(holder.pid), *user, "-m"]
        return ""

    def _in_shared_memory(self) -> bool:
        """All but a few megabytes of a /dev/shm that is small itself."""
        with contextlib.suppress(OSError):
            facts = os.statvfs(_SHM)
            if facts.f_blocks * facts.f_frsize <= _SMALL_SHM and facts.f_bavail * facts.f_frsize >= self._size_mb * MB:
                self._shm = Path(tempfile.mkdtemp(prefix="klamm-", dir=_SHM))
                self.path = self.outside = self._shm / "data"
                self.path.mkdir()
                self._write(self._shm / "rest", facts.f_bavail * facts.f_frsize - self._size_mb * MB)
                return True
        return False

    @property
    def free_bytes(self) -> int:
        """How much room there is."""
        facts = os.statvfs(self.outside)
        return facts.f_bavail * facts.f_frsize

    def fill(self, leaving: int = 0) -> None:
        """Take all room but so much."""
        self._write(self._filler, max(self.free_bytes - leaving, 0))

    def make_room(self) -> None:
        """Give back what was taken."""
        self._filler.unlink()

    @property
    def _filler(self) -> Path:
        return self.outside.parent / "filler" if self._shm is not None else self.outside / "filler"

    @staticmethod
    def _write(path: Path, size: int) -> None:
        with path.open("ab") as file, contextlib.suppress(OSError):  # the last piece may find no room
            for _ in range(0, size, _PIECE):
                file.write(bytes(min(_PIECE, size)))
                file.flush()


class KlammOnDisk(KlammProcess):
    """`klamm server` with its log dirs on a small disk, or on that and others."""

    def __init__(self, folder: Path, disk: SmallDisk, *dirs: Path, overrides: dict[str, str] | None = None) -> None:
        super().__init__(folder, overrides=overrides)
        self._disk = disk
        self.port, controller = free_ports("127.0.0.1", 2)
        self._properties = folder / "server.properties"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": ",".join(str(path) for path in (disk.path, *dirs)),
            "offsets.topic.replication.factor": "1",
            **self.overrides,
        }
        folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def command(self) -> list[str]:
        """What is run."""
        return [*self._disk.prefix, *KLAMM, "server", str(self._properties), "--log-level", self.log_level]
