"""The settings of clients as typed dicts, for type checkers and editors.

Written by docs/generate.py from `klamm.client.config`; change that and run `make docs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import ssl

    from klamm.client.errors import RecordError
    from klamm.client.serde import Serializer


class CommonSettings(TypedDict, total=False):
    """What all clients have in common."""

    bootstrap_servers: str | Sequence[str] | None
    """Addresses to find the cluster by."""
    bootstrap_timeout_ms: int | str | None
    """How long a new client waits until a broker answers; 0 tries each address once."""
    client_id: str | None
    """The name brokers log and measure this client by."""
    statistics_interval_ms: int | str | None
    """Call statistics.callback with the metrics every so many milliseconds; 0 never does."""
    statistics_callback: Callable[[dict[str, Any]], object] | None
    """A function that is called with a dict of metrics; be quick in it."""
    client_rack: str | None
    """Where this client is; fetches go to a replica of the same rack."""
    request_timeout_ms: int | str | None
    """How long to wait for an answer."""
    connections_max_idle_ms: int | str | None
    """Close a connection that was idle for so long."""
    socket_connection_setup_timeout_ms: int | str | None
    """How long to wait for a connection."""
    reconnect_backoff_ms: int | str | None
    """Wait before connecting again."""
    reconnect_backoff_max_ms: int | str | None
    """The longest such wait; it doubles."""
    retry_backoff_ms: int | str | None
    """Wait before asking again."""
    retry_backoff_max_ms: int | str | None
    """The longest such wait; it doubles."""
    metadata_max_age_ms: int | str | None
    """Ask again who leads what after so long."""
    metadata_recovery_strategy: str | None
    """Whether to begin with bootstrap.servers again when no known broker answers."""
    metadata_recovery_rebootstrap_trigger_ms: int | str | None
    """Do so after this long without."""
    send_buffer_bytes: int | str | None
    """SO_SNDBUF; -1 leaves it to the system."""
    receive_buffer_bytes: int | str | None
    """SO_RCVBUF; -1 leaves it to the system."""
    receive_message_max_bytes: int | str | None
    """The largest answer a broker may send."""
    security_protocol: str | None
    """How to speak to brokers."""
    ssl_context: ssl.SSLContext | None
    """An ssl.SSLContext; replaces the files below."""
    ssl_ca_location: str | None
    """A PEM file with the authorities to believe."""
    ssl_certificate_location: str | None
    """A PEM file with this client's certificate."""
    ssl_key_location: str | None
    """A PEM file with the key of that certificate."""
    ssl_key_password: str | None
    """The password of the key."""
    ssl_endpoint_identification_algorithm: str | None
    """https checks that certificates name the host; empty does not."""


class ProducerSettings(CommonSettings, total=False):
    """The settings of a producer."""

    acks: str | int | None
    """Who must have a record before it counts."""
    batch_size: int | str | None
    """Bytes of records sent together to a partition."""
    linger_ms: int | str | None
    """How long a record may wait for others to go with."""
    buffer_memory: int | str | None
    """Bytes of records that may wait to be sent."""
    max_block_ms: int | str | None
    """How long send may wait for room or metadata."""
    max_request_size: int | str | None
    """The largest request, and record."""
    max_in_flight_requests_per_connection: int | str | None
    """Requests without answer."""
    compression_type: str | None
    """How batches are packed."""
    compression_gzip_level: int | str | None
    """gzip's level."""
    compression_lz4_level: int | str | None
    """lz4's level."""
    compression_zstd_level: int | str | None
    """zstd's level."""
    enable_idempotence: bool | str | None
    """No duplicates, order kept, whatever is retried."""
    retries: int | str | None
    """How often to try again."""
    delivery_timeout_ms: int | str | None
    """Until when a record is stored or failed."""
    transactional_id: str | None
    """The name of this producer across restarts."""
    transaction_timeout_ms: int | str | None
    """Abort after so long without an end."""
    partitioner: str | Callable[[str, bytes | None, int], int] | None
    """default (murmur2 by key, sticky without), murmur2, murmur2_random, consistent, consistent_random, round_robin, or
    a function."""
    partitioner_ignore_keys: bool | str | None
    """Spread keyed records like those without key."""
    partitioner_adaptive_partitioning_enable: bool | str | None
    """Give fast brokers more."""
    partitioner_availability_timeout_ms: int | str | None
    """Pass over brokers this slow."""
    key_serializer: Serializer | None
    """Makes bytes of keys: a function, or bytes, str, json."""
    value_serializer: Serializer | None
    """Makes bytes of values."""
    allow_auto_create_topics: bool | str | None
    """Let the broker create a topic that is written to."""


class ConsumerSettings(CommonSettings, total=False):
    """The settings of a consumer. Its deserializers are arguments of their own: they decide what records hold."""

    group_id: str | None
    """The group this consumer reads with."""
    group_instance_id: str | None
    """The name of a static member."""
    group_protocol: str | None
    """Who assigns."""
    group_remote_assignor: str | None
    """The coordinator's assignor: uniform or range."""
    partition_assignment_strategy: str | Sequence[str] | None
    """The classic protocol's assignors, best first: range, roundrobin, sticky, cooperative-sticky."""
    session_timeout_ms: int | str | None
    """A member silent for so long is gone."""
    heartbeat_interval_ms: int | str | None
    """Time between two signs of life."""
    max_poll_interval_ms: int | str | None
    """A member that polls no more is gone."""
    max_poll_records: int | str | None
    """Records one poll returns at most."""
    enable_auto_commit: bool | str | None
    """Commit what was polled, every auto.commit.interval.ms."""
    auto_commit_interval_ms: int | str | None
    """Time between two such commits."""
    auto_offset_reset: str | None
    """Where to begin without a valid offset."""
    fetch_min_bytes: int | str | None
    """Answer when so much is there."""
    fetch_max_bytes: int | str | None
    """The most one fetch returns."""
    fetch_max_wait_ms: int | str | None
    """Answer after so long anyway."""
    max_partition_fetch_bytes: int | str | None
    """The same per partition."""
    queued_max_messages_kbytes: int | str | None
    """How much is fetched ahead."""
    check_crcs: bool | str | None
    """Check every batch's checksum."""
    isolation_level: str | None
    """Whether open and aborted transactions are seen."""
    exclude_internal_topics: bool | str | None
    """A pattern does not match internal topics."""
    allow_auto_create_topics: bool | str | None
    """Let the broker create a topic that is read."""
    default_api_timeout_ms: int | str | None
    """How long calls may take."""
    on_error: str | Callable[[RecordError], object] | None
    """What to do with a record that cannot be read: raise, skip, or a function that is called with the error before the
    record is skipped."""


class AdminSettings(CommonSettings, total=False):
    """The settings of an admin."""

    default_api_timeout_ms: int | str | None
    """How long calls may take."""
