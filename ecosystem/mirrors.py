"""MirrorMaker 2 as a dedicated process, both ways between two clusters."""

from pathlib import Path

from ecosystem import maven
from ecosystem.processes import Process


def start_mirror(folder: Path, properties: str) -> Process:
    """Start MirrorMaker with these settings."""
    file = folder / "mm2.properties"
    file.write_text(properties)
    main = "org.apache.kafka.connect.mirror.MirrorMaker"
    return Process(maven.java_command("connect", main, str(file), heap_mb=512), folder / "output.log")


def mirror_properties(here: str, there: str, topics: str, *, replication: int = 3) -> str:
    """The settings of topics and groups that are mirrored both ways between two bootstrap addresses."""
    factor = str(replication)
    settings = {
        "clusters": "here, there",
        "here.bootstrap.servers": here,
        "there.bootstrap.servers": there,
        "here->there.enabled": "true",
        "there->here.enabled": "true",
        "topics": topics,
        "groups": topics,
        "replication.factor": factor,
        "checkpoints.topic.replication.factor": factor,
        "heartbeats.topic.replication.factor": factor,
        "offset-syncs.topic.replication.factor": factor,
        "offset.storage.replication.factor": factor,
        "status.storage.replication.factor": factor,
        "config.storage.replication.factor": factor,
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "2",
        "sync.topic.configs.interval.seconds": "2",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.interval.seconds": "1",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "offset.lag.max": "0",
        "dedicated.mode.enable.internal.rest": "false",
        "here.exactly.once.source.support": "enabled",
        "there.exactly.once.source.support": "enabled",
        "offset.flush.interval.ms": "500",
        "plugin.discovery": "only_scan",
    }
    return "".join(f"{name} = {value}\n" for name, value in settings.items())
