"""`meta.properties`: which cluster, node and directory a data folder belongs to."""

import os
from dataclasses import dataclass

from klamm.model.errors import ConfigError
from klamm.model.ids import Uuid, uuid_from_str, uuid_to_str
from klamm.storage.disk import Disk

META_PROPERTIES = "meta.properties"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    """The identity of a data folder."""

    cluster_id: str
    node_id: int
    directory_id: Uuid


def read_meta_properties(disk: Disk, log_dir: str) -> MetaProperties | None:
    """Return the identity of a folder, None when it is not formatted; ConfigError when it is invalid."""
    path = os.path.join(log_dir, META_PROPERTIES)
    try:
        text = disk.read_file(path).decode()
    # Any other error is raised: a folder that cannot be read must not be taken for an empty one and formatted.
    except FileNotFoundError:
        return None
    values = {}
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            key, _, value = line.partition("=")
            # Java's Properties.store escapes = and : in values.
            values[key.strip()] = value.strip().replace("\\=", "=").replace("\\:", ":")
    try:
        if values["version"] != "1":
            raise ConfigError(f"{path} has version {values['version']}; Klamm reads version 1, as Kafka 3.3 and later")
        directory_id = values.get("directory.id")
        return MetaProperties(
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
            directory_id=uuid_from_str(directory_id) if directory_id else Uuid(bytes(16)),
        )
    except KeyError as error:
        raise ConfigError(f"{path} lacks the line {error.args[0]}=...; restore it or use an empty folder") from error
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is damaged: {error}; restore it or use an empty folder") from error


def write_meta_properties(disk: Disk, log_dir: str, properties: MetaProperties) -> None:
    """Give a folder its identity."""
    text = (
        "#\n"
        f"cluster.id={properties.cluster_id}\n"
        f"directory.id={uuid_to_str(properties.directory_id)}\n"
        f"node.id={properties.node_id}\n"
        "version=1\n"
    )
    disk.replace_file(os.path.join(log_dir, META_PROPERTIES), text.encode())
