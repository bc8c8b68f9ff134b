from klamm.storage import LogConfig


def test_a_topics_settings_are_read_by_their_kafka_names():
    config = LogConfig.from_topic_config(
        {
            "segment.bytes": 1048576,
            "cleanup.policy": ("compact", "delete"),
            "message.timestamp.type": "LogAppendTime",
            "compression.type": "zstd",
            "compression.zstd.level": 7,
            "preallocate": True,
            "min.cleanable.dirty.ratio": 0.25,
            "min.insync.replicas": 2,
        }
    )
    assert (config.segment_bytes, config.preallocate, config.min_cleanable_dirty_ratio) == (1048576, True, 0.25)
    assert config.compacted
    assert config.log_append_time
    assert (config.codec, config.level(4), config.level(2)) == (4, 7, None)
    assert config.retention_ms == LogConfig().retention_ms


def test_the_defaults_take_what_producers_send():
    config = LogConfig()
    assert config.codec is None
    assert not config.compacted
    assert not config.log_append_time


def test_no_policy_keeps_everything():
    assert LogConfig.from_topic_config({"cleanup.policy": ()}).cleanup_policy == frozenset()
