"""The cluster's metadata as every node sees it: records of the quorum log, the image they add up to, and its changes.

`records` turns records into log values and back, `image` is the immutable whole, `delta` replays records and says
what changed, `snapshot` writes an image down again, `publisher` follows the log and tells the rest of the node. What
should change is decided in `klamm.controller`; how records become durable is `klamm.raft`'s concern.
"""

from klamm.metadata.delta import LocalChanges, MetadataDelta, TopicChange
from klamm.metadata.image import (
    EMPTY_IMAGE,
    BrokerImage,
    ClusterImage,
    ConfigResource,
    Endpoint,
    FeatureRange,
    MetadataImage,
    PartitionImage,
    Provenance,
    ResourceType,
    TopicImage,
    TopicsImage,
    same_content,
)
from klamm.metadata.loader import MetadataLoader, Publisher
from klamm.metadata.records import decode_record, encode_record

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
