"""Settings of storage, parsed and frozen: those of one log, of the log cleaner, of a broker's storage."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from klamm.model.config import SettingValue
from klamm.records.compression import DECOMPRESSED_BYTES_MAX

MAX_LONG = 2**63 - 1
UNPACKED_RATIO_MAX = 100
"""How many times max.message.bytes a batch may unpack to. Logs and JSON pack by 5 to 20, and producers fill batches by
what they hold unpacked, so honest ones stay far below."""
UNPACKED_BYTES_MIN = 16 * 1024 * 1024
"""Topics with a small max.message.bytes take batches that unpack to this all the same."""
_PACKING_CODECS = frozenset({"gzip", "lz4", "snappy", "zstd"})
_CODECS = {"none": 0, "uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Topic settings that storage acts on; names are Kafka's, defaults are Kafka 4.3's."""

    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * 24 * 3600 * 1000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = 3600 * 1000
    cleanup_policy: frozenset[str] = frozenset({"delete"})
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    klamm_checked_codecs: frozenset[str] = frozenset({"gzip", "lz4", "snappy", "zstd"})
    preallocate: bool = False
    file_delete_delay_ms: int = 60_000
    retention_ms: int = 7 * 24 * 3600 * 1000
    retention_bytes: int = -1
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    delete_retention_ms: int = 24 * 3600 * 1000

    @property
    def unpacked_bytes_max(self) -> int:
        """What a batch may unpack to: a hundred times what it may be packed, within what readers take."""
        limit = max(UNPACKED_RATIO_MAX * self.max_message_bytes, UNPACKED_BYTES_MIN)
        return min(limit, DECOMPRESSED_BYTES_MAX)

    @property
    def compacted(self) -> bool:
        """Whether every record must have a key."""
        return "compact" in self.cleanup_policy

    @property
    def unchecked_codecs(self) -> frozenset[int]:
        """Codecs whose batches are stored without decompressing them; none where a rule needs the records."""
        # Compaction needs keys, and another codec needs the records to compress them again.
        if self.compacted or self.codec is not None:
            return frozenset()
        return frozenset(_CODECS[name] for name in _PACKING_CODECS - self.klamm_checked_codecs)

    @property
    def roll_ms(self) -> int:
        """When a segment is due to be closed: compaction must get at its records in time."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacted else self.segment_ms

    @property
    def log_append_time(self) -> bool:
        """Whether the broker's clock, not the producer's, stamps records."""
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def codec(self) -> int | None:
        """The codec batches must have, or None when the producer's choice stands."""
        return None if self.compression_type == "producer" else _CODECS[self.compression_type]

    def level(self, codec: int) -> int | None:
        """The compression level configured for a codec, None where it has none."""
        return {1: self.compression_gzip_level, 3: self.compression_lz4_level, 4: self.compression_zstd_level}.get(
            codec
        )

    @classmethod
    def from_topic_config(cls, values: Mapping[str, SettingValue]) -> "LogConfig":
        """Take what concerns storage out of the values in force for a topic; what they leave out has its default."""
        known: dict[str, object] = {}
        for name in cls.__dataclass_fields__:
            value = values.get(name.replace("_", "."))
            if value is not None:
                known[name] = frozenset(value) if isinstance(value, tuple) else value
        # Kafka's tests use it to go below the minimum of segment.bytes.
        if values.get("internal.segment.bytes"):
            known["segment_bytes"] = values["internal.segment.bytes"]
        return cls(**known)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """Settings of the log cleaner."""

    enabled: bool = True
    threads: int = 1
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    load_factor: float = 0.9
    io_buffer_bytes: int = 512 * 1024
    bytes_per_second: float = float("inf")
    backoff_ms: int = 15_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Settings of a broker's storage."""

    log_dirs: tuple[str, ...]
    recovery_threads_per_dir: int = 2
    checkpoint_interval_ms: int = 60_000
    producer_id_expiration_ms: int = 24 * 3600 * 1000
    producer_id_expiration_check_interval_ms: int = 600_000
    open_files_max: int = 256
    retention_check_interval_ms: int = 300_000
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    vital_dirs: tuple[str, ...] = ()
    """Log dirs whose failure stops the node: that of the metadata log."""
    metadata_only_dirs: tuple[str, ...] = ()
    """Log dirs that get no partitions."""
