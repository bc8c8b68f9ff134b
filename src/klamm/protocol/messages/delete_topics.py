"""DeleteTopics, v1-6: remove topics and their data.

v4 flexible · v5 error messages, quota errors · v6 topics by id
"""

from klamm.protocol.schema import array, int16, int32, message, string, struct, uuid, wire


@struct
class DeleteTopicState:
    """A topic by its name or its id."""

    # Either a name or an id, never both.
    name: str | None = wire(string, nullable=0, default=None)
    topic_id: bytes = wire(uuid)


@message(api_key=20, versions=(1, 6), flexible=4)
class DeleteTopicsRequest:
    """Name the topics to remove."""

    topics: list[DeleteTopicState] = wire(array(DeleteTopicState), since=6)
    topic_names: list[str] = wire(array(string), until=5)
    timeout_ms: int = wire(int32)


@struct
class DeletableTopicResult:
    """One topic that was removed, or why it was not."""

    # Null for an id that does not exist.
    name: str | None = wire(string, nullable=6)
    topic_id: bytes = wire(uuid, since=6)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, since=5, nullable=0, default=None)


@message(api_key=20, versions=(1, 6), flexible=4)
class DeleteTopicsResponse:
    """The result of each."""

    throttle_time_ms: int = wire(int32)
    responses: list[DeletableTopicResult] = wire(array(DeletableTopicResult))
