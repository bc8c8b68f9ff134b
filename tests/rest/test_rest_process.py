"""`klamm rest` as a process: start, errors, graceful stop."""

import json
import re
import signal
import subprocess
import urllib.request

from harness import KLAMM
from klamm.client import Admin

READY = re.compile(r"Klamm REST proxy is ready on (http://\S+),")


def test_it_serves_until_sigterm_and_leaves_its_groups(klamm_broker, topic):
    process = subprocess.Popen(
        [*KLAMM, "rest", "-b", klamm_broker.bootstrap, "--port", "0", "--access-log", "-X", "linger.ms=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert READY.match(line), line + process.stderr.read()
        url = READY.match(line)[1]

        def call(path, body=None):
            data = None if body is None else json.dumps(body).encode()
            headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
            request = urllib.request.Request(url + path, data, headers)
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.loads(response.read() or b"null")

        assert call(f"/topics/{topic}", {"records": [{"value": 1}]})["offsets"][0]["offset"] == 0
        instance = call(f"/consumers/{topic}", {"format": "json", "auto.offset.reset": "earliest"})["base_uri"]
        assert instance.startswith(url)
        path = instance.removeprefix(url)
        call(f"{path}/subscription", {"topics": [topic]})
        records = []
        while not records:
            records = call(f"{path}/records?timeout=1000")
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert "path=/topics/" in log or '"path":' in log, log
    finally:
        process.kill()
        process.wait()
    with Admin(bootstrap_servers=klamm_broker.bootstrap) as admin:
        group = admin.describe_groups([topic])[topic]
        assert group.members == (), "it has left, and the group need not wait for its session"
        # What was read is committed.
        assert [offset.offset for offset in admin.list_group_offsets(topic).values()] == [1]


def test_registry_and_proxy_in_one_process(klamm_broker, topic):
    command = [*KLAMM, "services", "-b", klamm_broker.bootstrap, "--port", "0", "--rest-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        match = re.match(r"Klamm registry is ready on (http://\S+), REST proxy on (http://\S+), over", line)
        assert match, line + process.stderr.read()
        registry, rest = match.groups()
        body = {"value_schema": '"string"', "records": [{"value": "tea"}]}
        headers = {"Content-Type": "application/vnd.kafka.avro.v2+json"}
        request = urllib.request.Request(f"{rest}/topics/{topic}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as response:
            schema_id = json.loads(response.read())["value_schema_id"]
        with urllib.request.urlopen(f"{registry}/schemas/ids/{schema_id}", timeout=60) as response:
            assert json.loads(response.read())["schema"] == '"string"'
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
    finally:
        process.kill()
        process.wait()


def test_a_cluster_that_does_not_answer_is_named():
    done = subprocess.run(
        [*KLAMM, "rest", "-b", "127.0.0.1:1", "--port", "0", "--timeout", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_machines_need_a_login():
    done = subprocess.run(
        [*KLAMM, "rest", "--host", "0.0.0.0", "--port", "0"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode != 0
    assert "--allow-insecure-bind" in done.stderr
