"""Inputs that are read without a node: metadata records, requests of the controller, batches, properties, JAAS lines,
rules, tokens, SQL.

A target reads its input and may refuse it, with its own error and soon. Inputs that broke a promise once are kept in
`corpus/TARGET/` and read again in every run.
"""

import base64
import random
import time
import warnings
from collections.abc import Callable

from fuzz import batches, replays
from fuzz.target import BrokenPromise, Target
from harness.decoys import decoy_maker
from harness.made_messages import MessageMaker
from klamm.metadata.records import RECORD_TYPES, decode_record
from klamm.model.errors import ConfigError, ProtocolError
from klamm.model.properties import parse_properties
from klamm.pipeline.sql.core.parser import parse
from klamm.protocol import encode
from klamm.protocol.schema import declaration
from klamm.protocol.varint import encode_uvarint
from klamm.security.core.bearer_claims import BearerIdentity, ClaimRules, check_unsecured, format_unsecured
from klamm.security.core.distinguished_name import alternative_names, subject_name
from klamm.security.core.jaas import parse_jaas
from klamm.security.core.oauthbearer import BearerMessage, BearerServer, format_bearer
from klamm.security.core.plain import PlainServer
from klamm.security.core.principal_mapping import NoMatchingRule, map_subject, parse_mapping_rules
from klamm.security.core.refusal import InvalidCredentials, LoginRefused
from klamm.security.core.scram import SCRAM_SHA_256, ScramClient, ScramServer, make_keys
from klamm.security.core.secret import Secret
from klamm.server.boot.config import parse_config
from klamm.server.boot.first_records import parse_scram_credential
from klamm.telemetry import log


def _make_record(source: random.Random) -> bytes:
    cls = RECORD_TYPES[source.choice(sorted(RECORD_TYPES))]
    version = source.randint(*declaration(cls).versions)
    body = encode(MessageMaker(source.getrandbits(64)).message(cls, version), version)
    head = b"".join(encode_uvarint(number) for number in (1, declaration(cls).api_key, version))
    return head + body


_PROPERTIES = """\
# a node with TLS and logins
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
controller.listener.names=CONTROLLER
listeners=SSL://127.0.0.1:9092,SASL://127.0.0.1:9094,CONTROLLER://127.0.0.1:9093
listener.security.protocol.map=SSL:SSL,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SSL
ssl.keystore.type=PEM
ssl.keystore.location=/none/node.pem
ssl.client.auth=required
ssl.principal.mapping.rules=RULE:^CN=(.*?),.*$/$1/L,DEFAULT
ssl.truststore.type=PEM
ssl.truststore.certificates=-----BEGIN CERTIFICATE-----\\nAAAA\\n-----END CERTIFICATE-----
listener.name.sasl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
  username="a" password="b" user_a="b";
connections.max.reauth.ms = 60000
authorizer.class.name:org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:a;User:CN=b\\,c
log.dirs=/tmp/none
"""
_JAAS = """org.apache.kafka.common.security.scram.ScramLoginModule required
 username="alice" password='it\\'s \\"secret\\" \\101' tokenauth=true /* comment */ // more
 user_bob=plain # end
;"""
_RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L,"
    r"RULE:^.*[Cc][Nn]=([a-z]*).*$/\/$1/U,DEFAULT"
)
_PARSED_RULES = parse_mapping_rules(_RULES)
_SUBJECT = "CN=kafka1,OU=SME\\,x,O=mycp,L=Fulton,ST=MD,C=US"
_CREDENTIAL = 'SCRAM-SHA-256=[name="alice",iterations=4096,salt="c2FsdA==",password="alice-secret"]'
_SQL = """CREATE STREAM orders (id BIGINT, who STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 5 SECONDS)
WITH (topic = 'orders', format = 'json');
CREATE TABLE totals WITH (topic = 'totals', partitions = 3) AS
SELECT who, count(*) AS n, sum(id) FILTER (WHERE id > 3) FROM orders -- comment
GROUP BY who, window(at, '1 minute') HAVING count(*) > 1;
"""


def _text(sample: str) -> Callable[[random.Random], bytes]:
    def make(_: random.Random) -> bytes:
        return sample.encode()

    return make


def _read_rules(data: bytes) -> None:
    with warnings.catch_warnings():
        # Python warns of signs in patterns that may mean something else in a later version.
        warnings.simplefilter("ignore", FutureWarning)
        # Not applied: who writes the settings of a node may write patterns that take for ever.
        parse_mapping_rules(data.decode(errors="replace"))


def _read_subject(data: bytes) -> None:
    map_subject(_PARSED_RULES, data.decode(errors="replace"))


_DER = base64.b64decode(
    "MIIB0jCCAXigAwIBAgIRAOYDrqN8DoV+kkfV4whk7yAwCgYIKoZIzj0EAwIwJjEkMCIGA1UEAwwbS2xhbW0gZGV2ZWxvcG1lbnQg"
    "YXV0aG9yaXR5MB4XDTI2MTExNzIyNTQzMloXDTI5MDIxOTIyNTQzMlowEDEOMAwGA1UEAwwFY2Fyb2wwWTATBgcqhkjOPQIBBggq"
    "hkjOPQMBBwNCAATSd83JwIRPZ5cqwMRFXypkipA6eJSjr45KX4RB8FL8z6AXwWq2Dz2rUXYykvPAyzNVLyoFseaQWJ94d8WaMisR"
    "o4GcMIGZMAwGA1UdEwEB/wQCMAAwDgYDVR0PAQH/BAQDAgeAMB0GA1UdJQQWMBQGCCsGAQUFBwMBBggrBgEFBQcDAjAaBgNVHREE"
    "EzARhwR/AAABgglsb2NhbGhvc3QwHQYDVR0OBBYEFNPQ6S82s1HbwMBN7idwbbrB2AVdMB8GA1UdIwQYMBaAFNh01sb+vCz1lFGF"
    "YH1zPynMp3y6MAoGCCqGSM49BAMCA0gAMEUCIQCEYM+2ssUcbnL/7lnJBZHKCkPFw1IT7Zgme/hcywEKRwIgbFB0N/pBwQNZPhga"
    "PlcpZg15vexTDVokQKXsvtRogm4="
)
"""A certificate of `klamm certs`."""


def _read_certificate(data: bytes) -> None:
    subject_name(data)
    alternative_names(data)


_KEYS = make_keys(SCRAM_SHA_256, Secret("secret"), b"salt" * 4, 4096)
_NONCE = "server-nonce"


def _find_keys(user: str, is_token: bool) -> object:
    return _KEYS if user == "alice" and not is_token else None


def _make_tokens(source: random.Random) -> bytes:
    """The two tokens of a login, separated by a newline, which neither can contain."""
    client = ScramClient(SCRAM_SHA_256, source.choice(("alice", "bob,=")), Secret("secret"), nonce="client-nonce")
    server = ScramServer(SCRAM_SHA_256, _find_keys, nonce=_NONCE, make_decoy=decoy_maker(SCRAM_SHA_256))  # type: ignore[arg-type]
    first = client.first()
    return first + b"\n" + client.step(server.step(first))


def _read_tokens(data: bytes) -> None:
    server = ScramServer(SCRAM_SHA_256, _find_keys, nonce=_NONCE, make_decoy=decoy_maker(SCRAM_SHA_256))  # type: ignore[arg-type]
    for token in data.split(b"\n"):
        server.step(token)
    assert not server.complete or server.user == "alice", "a login without the password"


def _make_answers(source: random.Random) -> bytes:
    server = ScramServer(SCRAM_SHA_256, _find_keys, nonce=_NONCE, make_decoy=decoy_maker(SCRAM_SHA_256))  # type: ignore[arg-type]
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("secret"), nonce="client-nonce")
    first = server.step(client.first())
    return first + b"\n" + (server.step(client.step(first)) if source.random() < 0.5 else b"e=other-error")


def _read_answers(data: bytes) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", Secret("secret"), nonce="client-nonce")
    client.first()
    for answer in data.split(b"\n"):
        # A million iterations, which a client computes at most, are seconds of CPU.
        client.step(answer.replace(b"i=9", b"i=4"))


def _make_plain(source: random.Random) -> bytes:
    return source.choice((b"\0alice\0secret", b"alice\0alice\0secret", b"\0bob\0x"))


def _read_plain(data: bytes) -> None:
    PlainServer({"alice": Secret("secret")}).step(data)


def _make_bearer(source: random.Random) -> bytes:
    claims = {"sub": "alice", "exp": source.choice((2e9, 1.0, "x")), "scope": source.choice(("a b", ["a"], 3))}
    return format_bearer(BearerMessage(Secret(format_unsecured(claims)), source.choice(("", "alice", "b,="))))


def _read_bearer(data: bytes) -> None:
    server = BearerServer(_validate_unsecured)
    server.step(data)
    assert not server.complete or server.user == "alice", "a login as another user"


def _validate_unsecured(token: Secret) -> BearerIdentity:
    return check_unsecured(token.reveal(), ClaimRules(), now_s=1.7e9)


def _decoded(read: Callable[[str], object]) -> Callable[[bytes], object]:
    def call(data: bytes) -> object:
        return read(data.decode(errors="replace"))

    return call


_LOGIN = (LoginRefused, InvalidCredentials)

TARGETS = (
    Target("metadata records", decode_record, (ProtocolError,), _make_record),
    Target(
        "metadata replays",
        replays.replay_records,
        replays.RECORD_REFUSALS,
        replays.make_records,
        harm=replays.harm_records,
    ),
    Target(
        "controller decisions",
        replays.decide_request,
        replays.REQUEST_REFUSALS,
        replays.make_request,
        harm=replays.harm_request,
    ),
    Target("batches", batches.read_batch, batches.REFUSALS, batches.make_batch, harm=batches.harm_batch),
    Target("produced batches", batches.read_produced, batches.REFUSALS, batches.make_batch, harm=batches.harm_batch),
    Target("properties", _decoded(parse_properties), (ConfigError,), _text(_PROPERTIES), is_text=True),
    Target("node settings", _decoded(parse_config), (ConfigError,), _text(_PROPERTIES), is_text=True),
    Target("jaas", _decoded(parse_jaas), (ConfigError,), _text(_JAAS), is_text=True),
    Target("mapping rules", _read_rules, (ConfigError,), _text(_RULES), is_text=True),
    Target("subjects", _read_subject, (NoMatchingRule,), _text(_SUBJECT), is_text=True),
    Target("certificate names", _read_certificate, (ValueError,), lambda _: _DER),
    Target("scram credential", _decoded(parse_scram_credential), (ConfigError,), _text(_CREDENTIAL), is_text=True),
    Target("scram tokens", _read_tokens, _LOGIN, _make_tokens, is_text=True),
    Target("scram answers", _read_answers, _LOGIN, _make_answers, is_text=True),
    Target("plain tokens", _read_plain, _LOGIN, _make_plain),
    Target("bearer tokens", _read_bearer, _LOGIN, _make_bearer, is_text=True),
    Target("sql", _decoded(parse), (), _text(_SQL), is_text=True),
)


def run_texts(seed: int, seconds: float = 0.0, cases: int = 0, targets: tuple[Target, ...] = TARGETS) -> dict[str, int]:
    """Read so many inputs per target, or for so long; returns how many were read, accepted or refused.

    An input that breaks a promise is added to the corpus, and BrokenPromise says where.
    """
    # A controller reports every broker that it fences, which millions of inputs make it do.
    level, log._SINK.level = log._SINK.level, log.Level.ERROR
    try:
        return _run_texts(seed, seconds, cases, targets)
    finally:
        log._SINK.level = level


def _run_texts(seed: int, seconds: float, cases: int, targets: tuple[Target, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    share = seconds / len(targets)
    for target in targets:
        for data in target.kept():
            target.try_one(data)
        source = random.Random(f"{seed}/{target.name}")
        deadline = time.monotonic() + share
        for count, data in enumerate(target.inputs(source)):
            if count >= cases and time.monotonic() >= deadline:
                counts[target.name] = count
                break
            try:
                target.try_one(data)
            except BrokenPromise as error:
                raise BrokenPromise(f"{error}\nkept as {target.keep(data)}") from error
    return counts
