"""Logs on disk, in Kafka's own files: segments, indexes, producer state, leader epochs, checkpoints.

Owns every byte under a log dir except the quorum's own files. Knows nothing of requests, replicas or sockets: leader
epochs and the time are arguments, results are offsets and regions of files. Appending and reading happen inline on the
loop's thread; recovery, compaction, syncs and removals in threads of the manager.
"""

from klamm.storage.config import CleanerConfig, LogConfig, StorageConfig
from klamm.storage.disk import Disk, FileSlice, OpenFiles, SegmentFile
from klamm.storage.log import Log
from klamm.storage.log_dir import LogDir, LogDirFacts
from klamm.storage.log_manager import LogManager
from klamm.storage.log_recovery import open_log
from klamm.storage.meta_properties import MetaProperties
from klamm.storage.producer_state import Origin
from klamm.storage.timestamp_lookup import TimestampOffset
from klamm.storage.txn_index import AbortedTxn

__all__ = [
    "AbortedTxn",
    "CleanerConfig",
    "Disk",
    "FileSlice",
    "Log",
    "LogConfig",
    "LogDir",
    "LogDirFacts",
    "LogManager",
    "MetaProperties",
    "OpenFiles",
    "Origin",
    "SegmentFile",
    "StorageConfig",
    "TimestampOffset",
    "open_log",
]
