"""Certificates that clients would refuse: not loaded from changed files, refused or warned of at the start."""

import io
from pathlib import Path

import pytest

from client.certificates import Authority
from klamm.model.clock import SystemClock
from klamm.model.errors import ConfigError
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.login.security import NodeSecurity
from klamm.telemetry import log

DAY_MS = 86_400_000
HOSTS = ("127.0.0.1", "localhost")


class ShiftedClock(SystemClock):
    """Wall time some days ahead."""

    days = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.days * DAY_MS


class Issuer:
    """Two authorities; certificates are made once, since each takes a tenth of a second."""

    def __init__(self, folder: Path) -> None:
        (folder / "other").mkdir()
        self.trusted = Authority(folder)
        self.stranger = Authority(folder / "other", "other authority")
        self._issued: dict[tuple, str] = {}

    def issue(self, hosts: tuple[str, ...], days: tuple[int, int], *, foreign: bool) -> str:
        """Key and certificate."""
        kind = (hosts, days, foreign)
        if kind not in self._issued:
            files = (self.stranger if foreign else self.trusted).issue("broker", *hosts, days=days)
            self._issued[kind] = Path(files.key).read_text() + Path(files.certificate).read_text()
        return self._issued[kind]


class Stores:
    """Key stores of a listener for clients and of one between nodes."""

    def __init__(self, folder: Path, issuer: Issuer) -> None:
        self.folder = folder
        self.issuer = issuer
        self.clock = ShiftedClock()
        for listener in ("clients", "inner"):
            self.write(listener)

    def write(self, listener: str, *hosts: str, days: tuple[int, int] = (-1, 400), foreign: bool = False) -> None:
        fresh = self.folder / "fresh.pem"
        fresh.touch(mode=0o600)
        fresh.write_text(self.issuer.issue(hosts or HOSTS, days, foreign=foreign))
        fresh.rename(self.folder / f"{listener}.pem")

    def start(self, *more: str) -> NodeSecurity:
        overrides = [
            "listeners=CLIENTS://127.0.0.1:0,INNER://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "listener.security.protocol.map=CLIENTS:SSL,INNER:SSL,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name=INNER",
            "ssl.keystore.type=PEM",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.issuer.trusted.path}",
            f"listener.name.clients.ssl.keystore.location={self.folder / 'clients.pem'}",
            f"listener.name.inner.ssl.keystore.location={self.folder / 'inner.pem'}",
            *more,
        ]
        return NodeSecurity(parse_config(embedded_properties(str(self.folder), 0), overrides), self.clock)


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    return Issuer(tmp_path_factory.mktemp("authorities"))


@pytest.fixture
def stores(tmp_path, issuer):
    return Stores(tmp_path, issuer)


@pytest.fixture
def logged():
    stream = io.StringIO()
    level = log._SINK.level
    log.configure(log.Level.WARNING, stream)
    yield stream
    log.configure(log.Level(level))


def contexts(security: NodeSecurity, listener: str) -> list:
    return [store.context for store in security.stores(listener.upper())]


@pytest.mark.parametrize("listener", ["clients", "inner"])
@pytest.mark.parametrize(
    ("days", "reason"), [((-30, -1), "CN=broker expired at 20"), ((1, 30), "CN=broker is not valid before 20")]
)
def test_a_changed_file_with_an_invalid_certificate_is_refused(stores, logged, listener, days, reason):
    security = stores.start()
    before = contexts(security, listener)
    stores.write(listener, days=days)
    security.reload_changed()
    assert contexts(security, listener) == before
    assert "certificate not reloaded" in logged.getvalue()
    assert reason in logged.getvalue()
    logged.truncate(0)
    security.reload_changed()
    assert logged.getvalue() == ""


def test_a_certificate_of_a_foreign_authority_is_refused_between_nodes(stores, logged):
    security = stores.start()
    before = contexts(security, "inner")
    stores.write("inner", foreign=True)
    security.reload_changed()
    assert contexts(security, "inner") == before
    assert "does not verify its certificate" in logged.getvalue()


def test_a_certificate_is_loaded_once_it_is_valid(stores):
    security = stores.start()
    before = contexts(security, "clients")
    stores.write("clients", days=(1, 400))
    security.reload_changed()
    assert contexts(security, "clients") == before
    stores.clock.days = 2
    security.reload_changed()
    assert contexts(security, "clients") != before


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"days": (-30, -1)}, "has expired"), ({"days": (1, 30)}, "not yet valid"), ({"foreign": True}, "local issuer")],
)
def test_nodes_that_would_refuse_each_other_do_not_start(stores, options, reason):
    stores.write("inner", **options)
    with pytest.raises(ConfigError, match=rf"listener INNER: the trust store .* does not verify .*{reason}"):
        stores.start()


@pytest.mark.parametrize(
    ("days", "warning"),
    [((-30, -1), "expired at"), ((1, 90), "is not valid before"), ((-1, 10), "expires in 9 days"), ((-1, 90), None)],
)
def test_certificates_are_warned_of_at_the_start(stores, logged, days, warning):
    stores.write("clients", days=days)
    stores.start()
    assert [warning in line for line in logged.getvalue().splitlines() if "WARN" in line] == ([True] if warning else [])


def test_a_certificate_of_another_host_is_warned_of_between_nodes(stores, logged):
    stores.write("inner", "elsewhere.example")
    stores.start()
    assert "other nodes cannot connect to 127.0.0.1" in logged.getvalue()
    logged.truncate(0)
    stores.start("ssl.endpoint.identification.algorithm=")
    assert logged.getvalue() == ""


def test_a_key_file_that_others_can_read_is_warned_of(stores, logged):
    (stores.folder / "clients.pem").chmod(0o640)
    stores.start()
    [line] = logged.getvalue().splitlines()
    assert "clients.pem has the private key and mode 640" in line
