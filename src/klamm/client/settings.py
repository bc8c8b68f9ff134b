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
    """Addresses of some brokers, from which the others are found."""
    bootstrap_timeout_ms: int | str | None
    """How long a new client waits for the first response of a broker; 0 tries every address once."""
    client_id: str | None
    """The name of this client in the logs, metrics and quotas of brokers."""
    statistics_interval_ms: int | str | None
    """Interval of calls of statistics.callback; 0 disables them."""
    statistics_callback: Callable[[dict[str, Any]], object] | None
    """A function that is called with a dict of metrics on the client's event loop; it must return quickly."""
    client_rack: str | None
    """The rack of this client; it fetches from a replica of the same rack."""
    request_timeout_ms: int | str | None
    """How long to wait for a response."""
    connections_max_idle_ms: int | str | None
    """Close a connection after it was idle for so long."""
    socket_connection_setup_timeout_ms: int | str | None
    """How long to wait for a connection."""
    reconnect_backoff_ms: int | str | None
    """The first wait before reconnecting; it doubles."""
    reconnect_backoff_max_ms: int | str | None
    """The longest wait before reconnecting."""
    retry_backoff_ms: int | str | None
    """The first wait before a retry; it doubles."""
    retry_backoff_max_ms: int | str | None
    """The longest wait before a retry."""
    metadata_max_age_ms: int | str | None
    """Refresh metadata that is older than this."""
    metadata_recovery_strategy: str | None
    """Whether bootstrap.servers are tried again when no known broker answers."""
    metadata_recovery_rebootstrap_trigger_ms: int | str | None
    """After so long without a broker, forget the known brokers and use bootstrap.servers only."""
    send_buffer_bytes: int | str | None
    """SO_SNDBUF; -1 leaves it to the system."""
    receive_buffer_bytes: int | str | None
    """SO_RCVBUF; -1 leaves it to the system."""
    receive_message_max_bytes: int | str | None
    """The largest response that is accepted."""
    security_protocol: str | None
    """The protocol of the brokers' listener."""
    ssl_context: ssl.SSLContext | None
    """An ssl.SSLContext; replaces the files below."""
    sasl_mechanism: str | None
    """PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER."""
    sasl_mechanisms: str | None
    """As sasl.mechanism, by librdkafka's name."""
    sasl_username: str | None
    """The user to log in as."""
    sasl_password: str | None
    """The password of that user."""
    sasl_jaas_config: str | None
    """User and password as Java's clients have them."""
    sasl_oauth_token_provider: Callable[[], object] | object | None
    """A function, async or not, or an object with a method token; returns a bearer token, or a tuple of the token and
    the time in seconds at which it expires."""
    sasl_oauthbearer_token_endpoint_url: str | None
    """URL from which tokens are requested, or a file: with a token."""
    sasl_oauthbearer_client_credentials_client_id: str | None
    """Client id at the identity provider."""
    sasl_oauthbearer_client_credentials_client_secret: str | None
    """The secret of that client id."""
    sasl_oauthbearer_scope: str | None
    """Scope that is requested with a token."""
    sasl_oauthbearer_header_urlencode: bool | str | None
    """Whether client id and secret are URL-encoded in the request of a token (RFC 6749)."""
    sasl_oauthbearer_method: str | None
    """oidc requests tokens from an identity provider, as token.endpoint.url alone does, too."""
    sasl_oauthbearer_client_id: str | None
    """As sasl.oauthbearer.client.credentials.client.id."""
    sasl_oauthbearer_client_secret: str | None
    """As sasl.oauthbearer.client.credentials.client.secret."""
    sasl_oauthbearer_extensions: str | None
    """Extensions that are sent with the token: name=value,..."""
    https_ca_location: str | None
    """A PEM file with the authorities trusted for the identity provider."""
    sasl_oauthbearer_grant_type: str | None
    """How tokens are requested: with a client's secret, or with an assertion, as Java's JwtBearerJwtRetriever does."""
    sasl_oauthbearer_assertion_file: str | None
    """A file with a signed assertion."""
    sasl_oauthbearer_assertion_private_key_file: str | None
    """A PEM file with the key that signs assertions."""
    sasl_oauthbearer_assertion_private_key_passphrase: str | None
    """The password of an encrypted key file."""
    sasl_oauthbearer_assertion_algorithm: str | None
    """The signature algorithm of assertions."""
    sasl_oauthbearer_assertion_claim_iss: str | None
    """The issuer (iss) of assertions."""
    sasl_oauthbearer_assertion_claim_sub: str | None
    """The subject (sub) of assertions."""
    sasl_oauthbearer_assertion_claim_aud: str | None
    """The audience (aud) of assertions."""
    sasl_oauthbearer_assertion_claim_exp_seconds: int | str | None
    """The lifetime (exp) of assertions."""
    sasl_oauthbearer_assertion_claim_nbf_seconds: int | str | None
    """How long before now assertions become valid (nbf)."""
    sasl_oauthbearer_assertion_claim_jti_include: bool | str | None
    """Whether assertions have a unique id (jti)."""
    sasl_oauthbearer_assertion_template_file: str | None
    """A JSON file with the objects header and payload: further fields and claims of assertions."""
    sasl_oauthbearer_jwt_retriever_class: str | None
    """Accepted for Java's default classes; refused otherwise."""
    sasl_login_callback_handler_class: str | None
    """Accepted for Java's default classes; refused otherwise."""
    sasl_login_class: str | None
    """Accepted for Java's default classes; refused otherwise."""
    sasl_login_connect_timeout_ms: int | str | None
    """How long to wait for a connection to the identity provider."""
    sasl_login_read_timeout_ms: int | str | None
    """How long to wait for the identity provider's response."""
    sasl_login_retry_backoff_ms: int | str | None
    """The first wait before a token is requested again; it doubles."""
    sasl_login_retry_backoff_max_ms: int | str | None
    """For how long a token is requested again."""
    sasl_login_refresh_window_factor: float | str | None
    """Part of a token's lifetime after which the next login gets another one."""
    sasl_login_refresh_window_jitter: float | str | None
    """Random part added to it."""
    sasl_login_refresh_min_period_seconds: int | str | None
    """Shortest time between two requests of tokens."""
    sasl_login_refresh_buffer_seconds: int | str | None
    """Time before a token expires by which it is replaced."""
    ssl_ca_location: str | None
    """A PEM file with the trusted certificate authorities."""
    ssl_certificate_location: str | None
    """A PEM file with this client's certificate."""
    ssl_key_location: str | None
    """A PEM file with the key of that certificate."""
    ssl_key_password: str | None
    """The password of the key."""
    ssl_endpoint_identification_algorithm: str | None
    """https verifies that the certificate names the host; empty does not."""
    ssl_truststore_type: str | None
    """PEM; Java's own formats are refused."""
    ssl_truststore_location: str | None
    """As ssl.ca.location."""
    ssl_truststore_certificates: str | None
    """The authorities as PEM text."""
    ssl_truststore_password: str | None
    """Refused: PEM files have no password."""
    ssl_keystore_type: str | None
    """PEM; Java's own formats are refused."""
    ssl_keystore_location: str | None
    """A PEM file with key and certificate of this client."""
    ssl_keystore_key: str | None
    """The key as PEM text."""
    ssl_keystore_certificate_chain: str | None
    """The certificates as PEM text."""
    ssl_keystore_password: str | None
    """Refused: ssl.key.password is that of the key."""
    ssl_enabled_protocols: str | Sequence[str] | None
    """The enabled versions of TLS."""
    ssl_cipher_suites: str | Sequence[str] | None
    """Enabled cipher suites by their IANA names; empty for all."""


class ProducerSettings(CommonSettings, total=False):
    """The settings of a producer."""

    acks: str | int | None
    """Which replicas must store a record before it is acknowledged: all in sync, 1 the leader, 0 none."""
    batch_size: int | str | None
    """The largest batch of records of a partition."""
    linger_ms: int | str | None
    """How long a record waits for others to share its batch."""
    buffer_memory: int | str | None
    """Bytes of records that may wait to be sent."""
    max_block_ms: int | str | None
    """How long send waits for buffer.memory or metadata."""
    max_request_size: int | str | None
    """The largest request, and record."""
    max_in_flight_requests_per_connection: int | str | None
    """Produce requests without response, per broker."""
    compression_type: str | None
    """The codec of batches."""
    compression_gzip_level: int | str | None
    """The level of gzip."""
    compression_lz4_level: int | str | None
    """The level of lz4."""
    compression_zstd_level: int | str | None
    """The level of zstd."""
    enable_idempotence: bool | str | None
    """Retries cause neither duplicates nor a change of order."""
    retries: int | str | None
    """How often a request is retried."""
    delivery_timeout_ms: int | str | None
    """A record not stored by then fails."""
    transactional_id: str | None
    """The name of this producer across restarts."""
    transaction_timeout_ms: int | str | None
    """The coordinator aborts a transaction that is open for longer."""
    partitioner: str | Callable[[str, bytes | None, int], int] | None
    """default (murmur2 by key, sticky without), murmur2, murmur2_random, consistent, consistent_random, round_robin, or
    a function."""
    partitioner_ignore_keys: bool | str | None
    """Distribute keyed records like those without key."""
    partitioner_adaptive_partitioning_enable: bool | str | None
    """Partitions with short queues get more records without key."""
    partitioner_availability_timeout_ms: int | str | None
    """Records without key skip partitions whose broker took no batch for so long; 0 disables it."""
    key_serializer: Serializer | None
    """Serializes keys: a function, or bytes, str, json."""
    value_serializer: Serializer | None
    """Serializes values, as key.serializer does keys."""
    allow_auto_create_topics: bool | str | None
    """Let the broker create a topic that is written to."""


class ConsumerSettings(CommonSettings, total=False):
    """The settings of a consumer. Its deserializers are arguments of their own: they decide what records hold."""

    group_id: str | None
    """The group of this consumer."""
    group_instance_id: str | None
    """The name of a static member."""
    group_protocol: str | None
    """classic: a member assigns partitions; consumer: the coordinator does (KIP-848)."""
    group_remote_assignor: str | None
    """The coordinator's assignor: uniform or range."""
    partition_assignment_strategy: str | Sequence[str] | None
    """Assignors of the classic protocol, preferred first: range, roundrobin, sticky, cooperative-sticky."""
    session_timeout_ms: int | str | None
    """The coordinator removes a member without heartbeats for so long."""
    heartbeat_interval_ms: int | str | None
    """Time between two heartbeats."""
    max_poll_interval_ms: int | str | None
    """A member without a poll for so long leaves."""
    max_poll_records: int | str | None
    """Records that a poll returns at most."""
    enable_auto_commit: bool | str | None
    """Commit positions every auto.commit.interval.ms."""
    auto_commit_interval_ms: int | str | None
    """Time between two automatic commits."""
    auto_offset_reset: str | None
    """Where reading begins without a committed offset, or when the offset is out of range."""
    fetch_min_bytes: int | str | None
    """The broker waits until a fetch has so many bytes."""
    fetch_max_bytes: int | str | None
    """The largest fetch response."""
    fetch_max_wait_ms: int | str | None
    """The broker answers a fetch after so long anyway."""
    max_partition_fetch_bytes: int | str | None
    """The same per partition."""
    queued_max_messages_kbytes: int | str | None
    """Kilobytes that are fetched ahead."""
    check_crcs: bool | str | None
    """Verify the checksum of every batch."""
    isolation_level: str | None
    """Whether records of open and aborted transactions are returned."""
    exclude_internal_topics: bool | str | None
    """A pattern does not match internal topics."""
    allow_auto_create_topics: bool | str | None
    """Let the broker create a topic that is read."""
    default_api_timeout_ms: int | str | None
    """How long a call may take."""
    on_error: str | Callable[[RecordError], object] | None
    """What to do with a record that cannot be read: raise, skip, or a function that is called with the error before the
    record is skipped."""


class AdminSettings(CommonSettings, total=False):
    """The settings of an admin."""

    default_api_timeout_ms: int | str | None
    """How long a call may take."""
