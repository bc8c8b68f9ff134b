"""A copy without records remembers by its file's name alone where it begins; that name outlives a loss of power.

Breaks when a copy takes over before its folder was synced: the partition would begin with offset 0 again.
"""

import os

from klamm.model.clock import ManualClock
from klamm.storage import Disk, LogConfig, LogManager, StorageConfig

from .campaign.moves import SteppedMoves


class SyncedNames(Disk):
    """Remembers the names each folder had when it was last synced."""

    def __init__(self):
        self.names = {}

    def sync_dir(self, path):
        super().sync_dir(path)
        self.names[os.stat(path).st_ino] = set(os.listdir(path))


def test_the_beginning_of_an_empty_copy_is_durable_when_it_takes_over(tmp_path):
    dirs = (str(tmp_path / "data"), str(tmp_path / "other"))
    disk, clock = SyncedNames(), ManualClock()
    manager = LogManager(StorageConfig(log_dirs=dirs), clock=clock, disk=disk)
    manager.start("cluster", 1, format_empty=True)
    log = manager.create("emptied", 0, bytes(15) + b"\1", LogConfig())
    log.truncate_fully_and_start_at(10)
    source = os.path.dirname(log.path)
    target = next(path for path in dirs if path != source)
    moves = SteppedMoves(manager, clock, lambda *_: None)
    moves.start("emptied", 0, target)
    for move in moves.under_way:
        moves.finish(move)
    folder = os.path.join(target, "emptied-0")
    assert manager.get("emptied", 0).path == folder
    assert "00000000000000000010.log" in disk.names[os.stat(folder).st_ino]
    manager.close()
