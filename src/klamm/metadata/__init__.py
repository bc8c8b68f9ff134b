"""The cluster's metadata on every node: records of the quorum log, the image they lead to, and its changes.

`records` encodes and decodes records, `image` is the immutable state, `delta` replays records and tracks what they
change, `image_records` turns an image into records for a snapshot, `loader` follows the log and calls publishers.
`klamm.controller` decides changes; `klamm.raft` makes records durable.
"""

from klamm.metadata.delta import LocalChanges, MetadataDelta, TopicChange
from klamm.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    Endpoint,
    FeatureRange,
    MetadataImage,
    PartitionImage,
    Provenance,
    TopicImage,
    TopicsImage,
    same_content,
)
from klamm.metadata.loader import MetadataLoader, Publisher
from klamm.metadata.records import decode_record, encode_record
from klamm.model.config_resources import ConfigResource, ResourceType

__all__ = [
    "EMPTY_IMAGE",
    "BrokerImage",
    "ClusterImage",
    "ConfigResource",
    "Endpoint",
    "FeatureRange",
    "LocalChanges",
    "MetadataDelta",
    "MetadataImage",
    "MetadataLoader",
    "PartitionImage",
    "Provenance",
    "Publisher",
    "ResourceType",
    "TopicChange",
    "TopicImage",
    "TopicsImage",
    "decode_record",
    "encode_record",
    "same_content",
]
