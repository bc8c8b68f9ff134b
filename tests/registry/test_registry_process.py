"""`klamm registry` as a process: start, errors, graceful stop, and kill -9 of the leader during writes."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import threading
import urllib.request

import pytest

from harness import KLAMM
from klamm.testing import unique

from .processes import RegistryProcess, wait_until
from .small_store import record


def test_it_stops_in_order_on_sigterm(klamm_broker):
    registry = RegistryProcess(klamm_broker.bootstrap, unique("_schemas"), unique("sr"), "--access-log")
    try:
        assert registry.request("POST", "/subjects/s/versions", {"schema": '"int"'})["id"] == 1
    finally:
        os.kill(registry.process.pid, signal.SIGTERM)
    _, log = registry.process.communicate(timeout=60)
    assert registry.process.returncode == 0, log
    assert "request method=POST path=/subjects/s/versions status=200" in log
    assert "registry stopping" in log
    assert "Traceback" not in log


def refused(*args):
    return subprocess.run([*KLAMM, "registry", *args], capture_output=True, text=True, timeout=60, check=False)


def test_errors_of_the_start_are_one_sentence(klamm_broker):
    port = klamm_broker.bootstrap.rpartition(":")[2]
    taken = refused("-b", klamm_broker.bootstrap, "--port", port)
    assert taken.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken by" in taken.stderr
    gone = refused("-b", "127.0.0.1:1", "--port", "0", "--timeout", "1s")
    assert gone.returncode == 5
    assert "cannot connect to 127.0.0.1:1" in gone.stderr
    assert "Traceback" not in gone.stderr
    exposed = refused("-b", klamm_broker.bootstrap, "--port", "0", "--host", "0.0.0.0")
    assert exposed.returncode == 1
    assert "--allow-insecure-bind" in exposed.stderr


def test_kill_9_of_the_leader_loses_nothing_that_was_acknowledged(klamm_broker):
    topic, group = unique("_schemas"), unique("sr")
    registries = [RegistryProcess(klamm_broker.bootstrap, topic, group) for _ in range(2)]
    acknowledged, stop = {}, threading.Event()

    def write(worker):
        number = 0
        while not stop.is_set():
            number += 1
            subject = f"s{worker}-{number}"
            body = {"schema": record("R", **{f"f{worker}_{number}": False})}
            for registry in registries:
                with contextlib.suppress(OSError, http.client.HTTPException):
                    acknowledged[subject] = registry.request("POST", f"/subjects/{subject}/versions", body)["id"]
                    break

    try:
        wait_until(
            lambda: all(registry.request("GET", "/master_available")["master_available"] for registry in registries)
        )
        writers = [threading.Thread(target=write, args=(worker,)) for worker in range(2)]
        for writer in writers:
            writer.start()
        wait_until(lambda: len(acknowledged) >= 20)
        leader = next(registry for registry in registries if registry.read_readiness()["leading"])
        survivor = next(registry for registry in registries if registry is not leader)
        leader.end(signal.SIGKILL)
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) >= before + 20)
        stop.set()
        for writer in writers:
            writer.join(60)
        assert len(set(acknowledged.values())) == len(acknowledged)
        for subject, schema_id in acknowledged.items():
            assert survivor.request("GET", f"/subjects/{subject}/versions/1")["id"] == schema_id
        assert survivor.end(signal.SIGTERM) == 0
    finally:
        stop.set()
        for registry in registries:
            registry.end(signal.SIGKILL)


def test_the_services_take_the_options_of_the_registry(klamm_broker):
    topic, group = unique("_schemas"), unique("sr")
    options = ("--topic", topic, "--group", group, "--compatibility", "none", "--advertised-host", "localhost")
    command = [*KLAMM, "services", "-b", klamm_broker.bootstrap, "--port", "0", "--rest-port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        match = re.match(r"Klamm registry is ready on (http://localhost:\d+), REST proxy on", line)
        assert match, line + process.stderr.read()

        def read(path):
            with urllib.request.urlopen(match[1] + path, timeout=60) as response:
                return json.loads(response.read())

        assert read("/config") == {"compatibilityLevel": "NONE"}
        assert read("/v1/metadata/id")["scope"]["clusters"]["schema-registry-cluster"] == group
        with klamm_broker.admin() as admin:
            assert topic in {listing.name for listing in admin.list_topics(internal=True)}
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize("command", ["registry", "services", "schema"])
def test_help_shows_a_first_step(command):
    shown = subprocess.run([*KLAMM, command, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert ("put " if command == "schema" else "curl -X POST") in shown
    if command != "schema":
        for option in ("--topic", "--group", "--compatibility", "--follower", "--authorizer"):
            assert option in shown
