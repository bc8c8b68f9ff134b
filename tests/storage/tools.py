"""A data folder with every kind of file, for the tests of check, dump and repair."""

import os
from pathlib import Path

from klamm.model.clock import ManualClock
from klamm.storage import LogConfig, LogManager, StorageConfig

from .conftest import NOW, append_end_txn_marker, batch, from_producer

CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=150)


def make_folder(folder: Path, *, clean: bool = True) -> Path:
    """Two partitions of `orders`, one of `paid` with transactions; closed cleanly unless told otherwise."""
    manager = LogManager(StorageConfig(log_dirs=(str(folder),)), clock=ManualClock(NOW))
    manager.start(CLUSTER, 1, format_empty=True)
    for partition in (0, 1):
        log = manager.create("orders", partition, b"o" * 16, CONFIG)
        for i in range(40):
            log.append_as_leader(from_producer(i, value=b"value %d" % i, timestamp=NOW + i), 3 + i // 20, NOW + i)
        log.advance_high_watermark(40)
    log = manager.create("paid", 0, b"p" * 16, LogConfig())
    for i in range(3):
        log.append_as_leader(from_producer(2 * i, 2, producer_id=8, transactional=True), 0, NOW)
        log.append_as_leader(batch(), 0, NOW)
        append_end_txn_marker(log, 8, 0, committed=i == 1, coordinator_epoch=2, leader_epoch=0, now_ms=NOW + i)
    manager.checkpoint()
    manager.close(clean=clean)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {
        os.path.relpath(os.path.join(top, name), folder): (Path(top) / name).read_bytes()
        for top, _, names in os.walk(folder)
        for name in names
    }
