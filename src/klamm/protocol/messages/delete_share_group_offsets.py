"""DeleteShareGroupOffsets, v0: remove the offsets of topics from an empty share group.

v0 flexible from the start
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uuid, wire


@struct
class DeleteShareGroupOffsetsRequestTopic:
    """One topic."""

    topic_name: str = wire(string)


@message(api_key=92, versions=(0, 0), flexible=0)
class DeleteShareGroupOffsetsRequest:
    """Name the topics whose offsets are removed."""

    group_id: str = wire(string)
    topics: list[DeleteShareGroupOffsetsRequestTopic] = wire(array(DeleteShareGroupOffsetsRequestTopic))


@struct
class DeleteShareGroupOffsetsResponseTopic:
    """Whether the offsets of one topic were removed."""

    topic_name: str = wire(string)
    topic_id: bytes = wire(uuid)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)


@message(api_key=92, versions=(0, 0), flexible=0)
class DeleteShareGroupOffsetsResponse:
    """The result of each topic."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0, default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = wire(array(DeleteShareGroupOffsetsResponseTopic))
