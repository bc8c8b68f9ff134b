"""Ports that are chosen now and listened on later: no two searches return the same one.

A cluster whose nodes are reached through proxies searches twice before anything listens. Older tests saw its ports
collide only by chance, once in some hundred starts; here the range is so small that every second search must collide.
"""

import json
import socket
import subprocess
import sys

import pytest

from harness.cluster import KlammCluster
from harness.links import Links
from klamm.model.errors import ConfigError
from klamm.net import free_ports as module
from klamm.net.free_ports import CLAIMS_MAX, PORTS_FREE, PortClaims, free_port_row, free_ports

HOST = "127.0.0.1"
ELSEWHERE = range(11_000, 17_900)
"""Where no other test looks for ports."""
SEARCH = """
import json, sys
from klamm.net.free_ports import free_ports
first, count = map(int, sys.argv[1:])
print(json.dumps(free_ports("127.0.0.1", count, range(first, first + count))), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def window():
    """Six ports in a row, free and claimed by nothing."""
    row = free_port_row(HOST, 6, ELSEWHERE)
    module._claims.release(row)
    return row


class OtherProcess:
    """Claims all ports of a row and keeps them until it is closed."""

    def __init__(self, row):
        command = [sys.executable, "-c", SEARCH, str(row.start), str(len(row))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.ports = json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()


def test_a_second_search_returns_other_ports(window):
    first = free_ports(HOST, 3, window)
    second = free_ports(HOST, 3, window)
    assert sorted(first + second) == list(window)
    with pytest.raises(ConfigError, match="no 1 free ports"):
        free_ports(HOST, 1, window)


def test_a_search_in_another_process_returns_other_ports(window):
    with OtherProcess(window[:4]) as other:
        assert other.ports == list(window[:4])
        assert free_ports(HOST, 2, window) == list(window[4:])
        with pytest.raises(ConfigError):
            free_port_row(HOST, 1, window)
    assert free_ports(HOST, 4, window) == list(window[:4])


def test_a_search_in_vain_keeps_nothing(window):
    with socket.create_server((HOST, window[2])):
        with pytest.raises(ConfigError):
            free_ports(HOST, 6, window)
        with pytest.raises(ConfigError):
            free_port_row(HOST, 4, window)
        assert free_port_row(HOST, 3, window) == window[3:]
        assert free_ports(HOST, 2, window) == list(window[:2])


def test_old_claims_end_so_that_a_long_run_finds_more(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_is_bindable", lambda host, port: True)
    claims = PortClaims(str(tmp_path / "ports"))
    assert all(claims.claim(HOST, port) for port in PORTS_FREE[: CLAIMS_MAX + 1])
    assert not claims.claim(HOST, PORTS_FREE[1])
    assert claims.claim(HOST, PORTS_FREE[0])


def test_a_process_that_can_write_no_file_still_differs_from_itself(tmp_path):
    claims = PortClaims(str(tmp_path / "not-there" / "ports"))
    [port] = free_ports(HOST, 1)
    assert claims.claim(HOST, port)
    assert not claims.claim(HOST, port)


def test_nodes_behind_links_have_ports_of_their_own(tmp_path, monkeypatch):
    nodes = 3
    row = free_port_row(HOST, 4 * nodes, ELSEWHERE)
    module._claims.release(row)
    monkeypatch.setattr(module.free_ports, "__defaults__", (row,))
    with Links() as links:
        cluster = KlammCluster(tmp_path, nodes, links=links)
        listened = {node.port for node in cluster.planned} | {node.controller_port for node in cluster.planned}
        for node in cluster.planned:
            text = (tmp_path / f"node-{node.node_id}" / "server.properties").read_text()
            line = next(line for line in text.splitlines() if line.startswith("listeners="))
            listened |= {int(address.rpartition(":")[2]) for address in line.split(",")}
    assert listened == set(row)
