"""Delegation tokens on a node: requests, rights, logins with a token, and the command."""

import base64
import time

import pytest
from click.testing import CliRunner

from harness.inprocess import NodeThread
from harness.wire import unique
from klamm.cli.main import cli
from klamm.client import Admin, AuthenticationError, KafkaError
from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from klamm.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from klamm.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from klamm.security.core.delegation_tokens import token_password

USERS = ("admin", "alice", "bob", "carol")
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
OVERRIDES = (
    "listeners=PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    f"sasl.jaas.config={PLAIN} {' '.join(f'user_{name}={name}-secret' for name in USERS)};",
    "connection.failed.authentication.delay.ms=10",
    "delegation.token.expiry.check.interval.ms=100",
)
KEY = "delegation.token.secret.key=master"
AUTHORIZER = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:ANONYMOUS;User:admin",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("node"), *OVERRIDES, *AUTHORIZER, KEY) as running:
        yield running


def settings_of(node, user: str, password: str, mechanism: str = "PLAIN", *, token: bool = False) -> dict[str, str]:
    common = {
        "bootstrap.servers": f"127.0.0.1:{node.node.addresses['CLIENTS'][1]}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if not token:
        return {**common, "sasl.username": user, "sasl.password": password}
    jaas = f'ScramLoginModule required username="{user}" password="{password}" tokenauth="true";'
    return {**common, "sasl.jaas.config": jaas}


@pytest.fixture
def connect(node):
    clusters = []

    def open_cluster(user: str = "alice", **changes) -> BlockingCluster:
        known = changes or settings_of(node, user, f"{user}-secret")
        clusters.append(BlockingCluster(known["bootstrap.servers"], settings=known))
        return clusters[-1]

    yield open_cluster
    for cluster in clusters:
        cluster.close()


def create(cluster, *renewers: str, owner: str | None = None, lifetime: int = -1):
    return cluster.ask(
        CreateDelegationTokenRequest(
            owner_principal_type="User" if owner else None,
            owner_principal_name=owner,
            renewers=[CreatableRenewers(principal_type="User", principal_name=name) for name in renewers],
            max_lifetime_ms=lifetime,
        )
    )


def described(cluster, *owners: str) -> set[str]:
    named = [DescribeDelegationTokenOwner(principal_type="User", principal_name=name) for name in owners]
    response = cluster.ask(DescribeDelegationTokenRequest(owners=named or None))
    assert response.error_code == 0
    return {token.token_id for token in response.tokens}


def grant(connect, operation: AclOperation, resource_type: AclResourceType, name: str, user: str) -> None:
    entry = AclCreation(
        resource_type=resource_type,
        resource_name=name,
        resource_pattern_type=PatternType.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission_type=AclPermission.ALLOW,
    )
    (result,) = connect("admin").ask(CreateAclsRequest(creations=[entry])).results
    assert result.error_code == 0


def token_settings(node, token, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
    return settings_of(node, token.token_id, token_password(token.hmac).reveal(), mechanism, token=True)


def principals(node) -> set:
    return node.run(lambda running: {channel.principal for channel in running.net._channels})


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_logs_in_as_its_owner(node, connect, mechanism):
    token = create(connect())
    assert token.error_code == 0
    holder = connect(**token_settings(node, token, mechanism))
    assert holder.broker_ids == [1]
    assert ("User", "alice", True) in principals(node)
    # A login with a token does not make tokens, nor see them.
    refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    assert create(holder).error_code == refused
    assert holder.ask(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=-1)).error_code == refused
    assert holder.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)).error_code == refused
    assert holder.ask(DescribeDelegationTokenRequest(owners=None)).error_code == refused


def test_a_mechanism_for_tokens_alone_is_not_reported_at_the_start(tmp_path, capfd):
    overrides = (*OVERRIDES[:-1], "delegation.token.expiry.check.interval.ms=3600000")

    def is_reported():
        return "SCRAM listener has no users" in capfd.readouterr().err

    with NodeThread(tmp_path, *overrides, KEY) as running:
        assert is_reported(), "there is no token yet"
        settings = settings_of(running, "alice", "alice-secret")
        cluster = BlockingCluster(settings["bootstrap.servers"], settings=settings)
        assert create(cluster).error_code == 0
        cluster.close()
    with NodeThread(tmp_path, *overrides, KEY):
        assert not is_reported()
    with NodeThread(tmp_path, *overrides):
        assert is_reported(), "without the key no token logs in"


def test_an_expired_token_is_of_no_use(node, connect):
    alice = connect()
    token = create(alice)
    assert alice.ask(ExpireDelegationTokenRequest(hmac=token.hmac, expiry_time_period_ms=-1)).error_code == 0
    with pytest.raises(AuthenticationError, match="invalid credentials"):
        connect(**token_settings(node, token))
    short = create(alice, lifetime=1)
    deadline = time.monotonic() + 30
    while short.token_id in node.run(lambda running: running.services.image.delegation_tokens):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with pytest.raises(AuthenticationError, match="invalid credentials"):
        connect(**token_settings(node, short))


def test_a_wrong_password_and_a_user_are_no_token(node, connect):
    token = create(connect())
    for user, password in ((token.token_id, "wrong"), ("alice", "alice-secret")):
        with pytest.raises(AuthenticationError, match="invalid credentials"):
            connect(**settings_of(node, user, password, "SCRAM-SHA-256", token=True))
    # A token is no user either.
    password = token_password(token.hmac).reveal()
    with pytest.raises(AuthenticationError, match="invalid credentials"):
        connect(**settings_of(node, token.token_id, password, "SCRAM-SHA-256"))


def test_tokens_are_seen_by_those_concerned(connect):
    alice, bob, carol = connect("alice"), connect("bob"), connect("carol")
    token = create(alice, "bob")
    assert token.token_id in described(alice)
    assert token.token_id in described(bob, "alice")
    assert token.token_id not in described(alice, "carol")
    assert token.token_id not in described(carol)
    empty = alice.ask(DescribeDelegationTokenRequest(owners=[]))
    assert (empty.error_code, empty.tokens) == (0, [])
    renewed = bob.ask(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=1000))
    assert (renewed.error_code, renewed.expiry_timestamp_ms < token.expiry_timestamp_ms) == (0, True)
    mismatch = carol.ask(RenewDelegationTokenRequest(hmac=token.hmac, renew_period_ms=1000))
    assert mismatch.error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH


def wait_until(condition) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_tokens_of_others_need_rights(connect):
    carol = connect("carol")
    refused = create(carol, owner="alice")
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("alice", "carol")
    grant(connect, AclOperation.CREATE_TOKENS, AclResourceType.USER, "User:alice", "carol")
    wait_until(lambda: create(carol, owner="alice").error_code == 0)
    first, second = create(connect("bob")), create(connect("bob"))
    assert not described(carol) & {first.token_id, second.token_id}
    grant(connect, AclOperation.DESCRIBE, AclResourceType.DELEGATION_TOKEN, first.token_id, "carol")
    wait_until(lambda: described(carol) & {first.token_id, second.token_id} == {first.token_id})
    grant(connect, AclOperation.DESCRIBE_TOKENS, AclResourceType.USER, "User:bob", "carol")
    wait_until(lambda: {first.token_id, second.token_id} <= described(carol))


def test_a_connection_without_a_login_gets_no_tokens(node):
    with BlockingCluster(f"127.0.0.1:{node.port}") as anonymous:
        refused = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        response = create(anonymous)
        assert (response.error_code, response.max_timestamp_ms) == (refused, -1)
        assert anonymous.ask(DescribeDelegationTokenRequest(owners=None)).error_code == refused
        renewed = anonymous.ask(RenewDelegationTokenRequest(hmac=b"", renew_period_ms=-1))
        assert (renewed.error_code, renewed.expiry_timestamp_ms) == (refused, -1)


def test_without_a_key_tokens_are_disabled(tmp_path):
    with NodeThread(tmp_path, *OVERRIDES) as running:
        settings = settings_of(running, "alice", "alice-secret")
        with BlockingCluster(settings["bootstrap.servers"], settings=settings) as alice:
            disabled = ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
            assert create(alice).error_code == disabled
            assert alice.ask(DescribeDelegationTokenRequest(owners=None)).error_code == disabled
            assert alice.ask(RenewDelegationTokenRequest(hmac=b"x", renew_period_ms=1)).error_code == disabled


def test_the_admin_client(node):
    with Admin(settings_of(node, "alice", "alice-secret")) as admin:
        token = admin.create_delegation_token(renewers=["User:bob"], max_lifetime_ms=3_600_000)
        assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:alice", ("User:bob",))
        assert token.max_ms - token.issued_ms == 3_600_000
        assert token.hmac.hex() not in repr(token)
        assert str(token.hmac) not in repr(token)
        assert token in wait_for(admin.describe_delegation_tokens, token)
        assert admin.describe_delegation_tokens(["User:dora"]) == []
        password = base64.b64encode(token.hmac).decode()
        login = settings_of(node, token.token_id, password, "SCRAM-SHA-512", token=True)
        with Admin(login) as as_owner:
            assert as_owner.describe_cluster().brokers
        with Admin(settings_of(node, "bob", "bob-secret")) as renewer:
            assert renewer.renew_delegation_token(token.hmac, period_ms=60_000) < token.expires_ms
        with Admin(settings_of(node, "carol", "carol-secret")) as other, pytest.raises(KafkaError) as caught:
            other.expire_delegation_token(token.hmac)
        assert caught.value.code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        admin.expire_delegation_token(token.hmac)
    with Admin(settings_of(node, "alice", "alice-secret")) as admin, pytest.raises(ValueError, match="User:"):
        admin.create_delegation_token(owner="alice")


def wait_for(describe, token):
    """The broker answers from its own copy of the metadata, which follows the controller's."""
    deadline = time.monotonic() + 30
    while token not in (tokens := describe()):
        assert time.monotonic() < deadline
    return tokens


def test_the_command(node, tmp_path):
    path = tmp_path / "alice.properties"
    settings = settings_of(node, "alice", "alice-secret")
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    where = ("--bootstrap-server", settings["bootstrap.servers"], "--command-config", str(path))

    def run(*args: str, code: int = 0) -> str:
        result = CliRunner().invoke(cli, ["kafka-delegation-tokens", *where, *args], prog_name="klamm")
        assert result.exit_code == code, result.output
        return result.output

    renewer = unique("renewer")
    created = run("--create", "--max-life-time-period", "-1", "--renewer-principal", f"User:{renewer}")
    assert f"renewers :[User:{renewer}] , max-life-time-period :-1" in created
    token_id = created.split("Created delegation token with tokenId : ")[1].split()[0]
    row = created.splitlines()[-1].split()
    assert (row[0], row[2:5]) == (token_id, ["User:alice", "User:alice", f"[User:{renewer}]"])
    assert token_id in run("--describe", "--owner-principal", "User:alice")
    assert "New expiry date : 20" in run("--renew", "--hmac", row[1], "--renew-time-period", "1000000")
    run("--expire", "--hmac", row[1], "--expiry-time-period", "-1")
    assert token_id not in run("--describe")
    missing = run("--renew", "--hmac", row[1], "--renew-time-period", "-1", code=1)
    assert "DelegationTokenNotFoundException" in missing
    assert "exactly one action" in run("--create", "--renew", code=1)
    assert "Missing required argument" in run("--renew", code=1)
    assert "can't be used" in run("--describe", "--hmac", "x", code=1)
