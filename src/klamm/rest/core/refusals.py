"""Error codes and texts of the REST interfaces, and which error of the cluster is which.

| code | meaning | v2 | v3 |
|---|---|---|---|
| 40002 | the cluster refuses the request: a topic exists, a setting is invalid | | x |
| 40101, 40301 | the cluster refuses the login, or the right | x | x |
| 40401, 40402 | no such topic, no such partition | x | x |
| 40403 | no such consumer instance in v2; no such topic or partition in v3 | x | x |
| 40601 | an instance is read in another format than its own | x | |
| 40902 | a consumer instance of that name exists | x | |
| 40903 | subscription and assignment are mixed; a partition is not assigned | x | |
| 42201, 42202 | keys or values without a schema | x | |
| 42203 | a value does not fit its format or schema | x | |
| 42204 | an invalid setting of a consumer instance | x | |
| 42205 | a schema that is not valid | x | x |
| 42206 | an invalid record | | x |
| 42207 | a schema that the subject of the topic does not have, or that the registry refuses | x | x |
| 42208 | an invalid batch | | x |
| 50002, 50003 | an error of the cluster, and one that may pass | x | x |
"""

from __future__ import annotations

from typing import Final

from klamm.client.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokersUnreachableError,
    KafkaError,
    SomeFailed,
    UnknownTopicOrPartitionError,
)
from klamm.http.refusals import HttpRefusal
from klamm.model.errors import ErrorCode

_REFUSED_BY_CLUSTER: Final = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.SECURITY_DISABLED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.TOPIC_DELETION_DISABLED,
    }
)
"""Refusals that sending the same request again does not change."""


def topic_not_found() -> HttpRefusal:
    """Return the refusal of a topic that does not exist (v2)."""
    return HttpRefusal(40401, "Topic not found.")


def partition_not_found() -> HttpRefusal:
    """Return the refusal of a partition that does not exist."""
    return HttpRefusal(40402, "Partition not found.")


def unknown_topic() -> HttpRefusal:
    """Return the refusal of a topic that does not exist (v3)."""
    return HttpRefusal(40403, "This server does not host this topic-partition.")


def instance_not_found() -> HttpRefusal:
    """Return the refusal of a consumer instance that does not exist, has expired, or belongs to another principal."""
    return HttpRefusal(40403, "Consumer instance not found.")


def instance_exists() -> HttpRefusal:
    """Return the refusal of a name that a consumer instance has."""
    return HttpRefusal(40902, "Consumer with specified consumer ID already exists in the specified consumer group.")


def format_mismatch() -> HttpRefusal:
    """Return the refusal of a read in another format."""
    return HttpRefusal(
        40601, "The requested embedded data format does not match the deserializer for this consumer instance"
    )


def illegal_state(reason: str) -> HttpRefusal:
    """Return the refusal of a call that the state of the instance does not allow."""
    return HttpRefusal(40903, f"Illegal state: {reason}")


def bad_request(reason: str) -> HttpRefusal:
    """Return the refusal of a body that is malformed."""
    return HttpRefusal(400, f"Bad Request: {reason}")


def invalid_field(reason: str) -> HttpRefusal:
    """Return the refusal of a body whose fields are not valid."""
    return HttpRefusal(422, reason)


def invalid_consumer_config(reason: str) -> HttpRefusal:
    """Return the refusal of a setting of a consumer instance."""
    return HttpRefusal(42204, f"Invalid consumer configuration: {reason}")


def conversion_failed(reason: str) -> HttpRefusal:
    """Return the refusal of a key or value that does not fit its format or schema."""
    return HttpRefusal(42203, f"Conversion of JSON to Object failed: {reason}")


def invalid_schema(reason: str) -> HttpRefusal:
    """Return the refusal of a schema."""
    return HttpRefusal(42205, f"Invalid schema: {reason}")


def serialization_failed(reason: str) -> HttpRefusal:
    """Return the refusal of a schema that the subject does not have, or that the registry does not take for it."""
    return HttpRefusal(42207, f"Error serializing message. {reason}")


def schema_forbidden(reason: str) -> HttpRefusal:
    """Return the refusal of a schema to which the registry gives no right."""
    return HttpRefusal(40301, reason)


def invalid_payload(reason: str) -> HttpRefusal:
    """Return the refusal of a record (v3)."""
    return HttpRefusal(42206, f"Payload error. {reason}")


def invalid_batch(reason: str) -> HttpRefusal:
    """Return the refusal of a batch of records (v3)."""
    return HttpRefusal(42208, reason)


def not_found(message: str) -> HttpRefusal:
    """Return the refusal of a resource that does not exist (v3)."""
    return HttpRefusal(404, message)


def refusal_of(error: KafkaError) -> HttpRefusal:
    """Return the answer to a request that failed with this error of the cluster."""
    if isinstance(error, SomeFailed):
        return refusal_of(next(iter(error.failures.values())))
    text = error.detail or str(error)
    if isinstance(error, UnknownTopicOrPartitionError):
        return unknown_topic()
    if isinstance(error, AuthenticationError):
        return HttpRefusal(40101, text)
    if isinstance(error, AuthorizationError):
        return HttpRefusal(40301, text)
    if isinstance(error, BrokersUnreachableError):
        return HttpRefusal(50302, text)
    if error.code in _REFUSED_BY_CLUSTER:
        return HttpRefusal(40002, text)
    if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return HttpRefusal(42901, text)
    if error.code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return HttpRefusal(41301, text)
    return HttpRefusal(50003 if error.retriable else 50002, text)
