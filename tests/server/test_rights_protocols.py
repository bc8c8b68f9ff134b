"""The matrix of rights for users that a certificate or a login names: the same answers on SSL and SASL listeners.

The whole matrix has three columns for each of some hundred rows; `make test` tries a sample that the printed seed
chooses, KLAMM_MATRIX=all (in `make compat`) all of it.
"""

import os
import random
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.access import DENIALS, PLAIN_MODULE, allow, collect_codes, secured_node, set_entries
from harness.inprocess import NodeThread
from harness.rights_matrix import (
    ALICE,
    SERVED,
    check_allowed,
    check_denied,
    fields_of,
    find_row,
    grants_of,
    prepare_resources,
    snake_case,
)
from harness.rights_requests import TOPIC
from harness.wire import Wire
from klamm.cli.certs import issue, make_authority

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
SAMPLE = 15
"""Rows of the matrix per protocol in `make test`."""
PORTS = {
    ("SSL", "broker"): "TLS",
    ("SSL", "controller"): "CTLS",
    ("SASL", "broker"): "LOGIN",
    ("SASL", "controller"): "CLOGIN",
}
"""The listener of a protocol and kind."""


def choose_rows(protocol: str) -> list[tuple[str, str, str]]:
    rows = [(protocol, kind, api) for kind, api in SERVED]
    if os.environ.get("KLAMM_MATRIX") == "all":
        return rows
    # Workers collect the same tests only if they choose alike: xdist gives them one seed through the environment.
    return random.Random(f"{_shared_seed()}/{protocol}").sample(rows, SAMPLE)


def _shared_seed() -> str:
    return os.environ.get("KLAMM_SEED") or os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(SEED)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_authority(str(folder))
    issue(str(folder), "node", ("127.0.0.1",))
    issue(str(folder), "alice", ())
    return folder


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[NodeThread]:
    names = ("PLAINTEXT", "CONTROLLER", *PORTS.values())
    overrides = (
        "listeners=" + ",".join(f"{name}://127.0.0.1:0" for name in names),
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(
            f"{name}:{'SSL' if protocol == 'SSL' else 'SASL_PLAINTEXT'}" for (protocol, _), name in PORTS.items()
        ),
        "controller.listener.names=CONTROLLER,CTLS,CLOGIN",
        "inter.broker.listener.name=PLAINTEXT",
        "ssl.keystore.type=PEM",
        f"ssl.keystore.location={certificates / 'node.pem'}",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={certificates / 'ca.pem'}",
        "ssl.client.auth=required",
        "ssl.principal.mapping.rules=RULE:^CN=([a-z]+)$/$1/",
        "sasl.enabled.mechanisms=PLAIN",
        *(
            f'listener.name.{name}.plain.sasl.jaas.config={PLAIN_MODULE} required user_alice="one";'
            for name in ("login", "clogin")
        ),
        "auto.create.topics.enable=false",
    )
    with secured_node(tmp_path_factory.mktemp("protocols"), *overrides) as thread:
        with Wire(thread.port) as wire:
            prepare_resources(wire)
        yield thread


def connect(node: NodeThread, certificates: Path, protocol: str, kind: str) -> Wire:
    """A connection of alice."""
    wire = Wire(node.node.addresses[PORTS[protocol, kind]][1])
    if protocol == "SSL":
        context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        context.load_cert_chain(certificates / "alice.pem")
        wire.sock = context.wrap_socket(wire.sock, server_hostname="127.0.0.1")
    else:
        assert wire.call("sasl_handshake", 1, mechanism="PLAIN").error_code == 0
        assert wire.call("sasl_authenticate", 1, auth_bytes=b"\0alice\0one").error_code == 0
    return wire


@pytest.mark.parametrize(("protocol", "kind", "api"), [*choose_rows("SSL"), *choose_rows("SASL")])
def test_rights_of_users_by_certificate_and_login(
    node: NodeThread, certificates: Path, protocol: str, kind: str, api: str
) -> None:
    """No right, all but one, exactly the needed ones."""
    print(f"KLAMM_SEED={_shared_seed()}")
    row = find_row(kind, api)
    with Wire(node.port) as wire:
        fields = fields_of(row, row.version, wire.topic_id(TOPIC))
    with connect(node, certificates, protocol, kind) as wire:
        set_entries(node, [])
        reply = wire.call(snake_case(api), row.version, **fields)
        if row.denials:
            check_denied(kind, api, row.version, row, reply)
        else:
            assert not DENIALS & set(collect_codes(reply)), reply
        for missing in range(len(row.denials)):
            set_entries(node, allow(ALICE, grants_of(api, kind, without=missing)))
            check_denied(kind, api, row.version, row, wire.call(snake_case(api), row.version, **fields), missing)
        set_entries(node, allow(ALICE, grants_of(api, kind)))
        check_allowed(api, row, wire.call(snake_case(api), row.version, **fields))
