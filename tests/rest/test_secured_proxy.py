"""`klamm rest` and `klamm services` with HTTPS and the passwords of a file, as processes."""

import base64
import contextlib
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from client.certificates import Authority
from harness import KLAMM
from klamm.http.authfile import format_user
from klamm.http.binding import bind

from .conftest import wait_until

READY = re.compile(r"Klamm (?:REST proxy is ready on|registry is ready on \S+, REST proxy on) (https?://\S+),")
JSON_V2 = "application/vnd.kafka.json.v2+json"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def authfile(tmp_path):
    path = tmp_path / "auth.json"
    path.write_text(json.dumps({"users": [format_user("ada", "ada's password", "salt")], "permissions": []}))
    return path


@contextlib.contextmanager
def running(*args):
    """A process until the block ends; yields the address of the proxy."""
    process = subprocess.Popen([*KLAMM, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        assert READY.match(line), line + process.stderr.read()
        yield READY.match(line)[1]
    finally:
        process.terminate()
        _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log
    assert "ada's password" not in log


def call(url, path, body=None, *, user=None, tls=None, content_type=JSON_V2):
    """Return status and JSON of an answer; `user` is name:password."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": content_type} if data else {})
    if user is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(user.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=60, context=tls) as response:
            return response.status, json.loads(response.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def test_requests_over_https_need_a_password(klamm_broker, topic, authority, authfile):
    files = authority.issue("proxy", "127.0.0.1")
    tls = ssl.create_default_context(cafile=str(authority.path))
    options = ("--server-tls-certfile", str(files.certificate), "--server-tls-keyfile", str(files.key))
    with running("rest", "-b", klamm_broker.bootstrap, "--port", "0", *options, "--authfile", str(authfile)) as url:
        assert url.startswith("https://")
        ada, wrong = "ada:ada's password", "ada:other"
        body = {"records": [{"value": 1}]}
        for path, sent in ((f"/topics/{topic}", body), ("/v3/clusters", None), ("/topics", None)):
            for user in (None, wrong, "bob:ada's password"):
                assert call(url, path, sent, user=user, tls=tls)[0] == 401, (path, user)
        assert call(url, "/health/ready", tls=tls)[0] == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            call(url, "/topics", user=ada, tls=ssl.create_default_context())

        assert call(url, f"/topics/{topic}", body, user=ada, tls=tls)[1]["offsets"][0]["offset"] == 0
        [cluster] = call(url, "/v3/clusters", user=ada, tls=tls)[1]["data"]
        assert cluster["metadata"]["self"].startswith(url)
        value = {"value": {"type": "JSON", "data": 2}}
        path = f"/v3/clusters/{cluster['cluster_id']}/topics/{topic}/records"
        assert call(url, path, value, user=ada, tls=tls, content_type="application/json")[1]["offset"] == 1

        settings = {"format": "json", "auto.offset.reset": "earliest"}
        instance = call(url, f"/consumers/{topic}", settings, user=ada, tls=tls)[1]["base_uri"]
        assert instance.startswith(url), "a client that follows it stays with HTTPS"
        path = instance.removeprefix(url)
        assert call(url, f"{path}/records", tls=tls)[0] == 401
        assert call(url, f"{path}/subscription", {"topics": [topic]}, user=ada, tls=tls)[0] == 204
        values = []

        def read_all():
            values.extend(row["value"] for row in call(url, f"{path}/records?timeout=500", user=ada, tls=tls)[1])
            return values == [1, 2]

        wait_until(read_all)


def test_a_changed_password_counts_at_once(klamm_broker, authfile):
    with running("rest", "-b", klamm_broker.bootstrap, "--port", "0", "--authfile", str(authfile)) as url:
        assert call(url, "/topics", user="ada:ada's password")[0] == 200
        authfile.write_text(json.dumps({"users": [format_user("ada", "new", "salt")], "permissions": []}))
        wait_until(lambda: call(url, "/topics", user="ada:new")[0] == 200)
        assert call(url, "/topics", user="ada:ada's password")[0] == 401


def test_registry_and_proxy_share_the_logins(klamm_broker, topic, authfile):
    permissions = [{"username": "ada", "operation": "Write", "resource": "Subject:.*"}]
    users = json.loads(authfile.read_text())["users"]
    authfile.write_text(json.dumps({"users": users, "permissions": permissions}))
    with bind("127.0.0.1", 0) as probe:
        port = probe.getsockname()[1]
    registry = f"http://ada:ada%27s%20password@127.0.0.1:{port}"
    options = ("--port", str(port), "--rest-port", "0", "--registry-url", registry, "--authfile", str(authfile))
    with running("services", "-b", klamm_broker.bootstrap, *options) as url:
        body = {"value_schema": '"string"', "records": [{"value": "tea"}]}
        avro = "application/vnd.kafka.avro.v2+json"
        assert call(url, f"/topics/{topic}", body, content_type=avro)[0] == 401
        status, answer = call(url, f"/topics/{topic}", body, user="ada:ada's password", content_type=avro)
        assert (status, answer["offsets"][0]["offset"]) == (200, 0)
        path = f"/schemas/ids/{answer['value_schema_id']}"
        assert call(f"http://127.0.0.1:{port}", path)[0] == 401
        assert call(f"http://127.0.0.1:{port}", path, user="ada:ada's password")[1]["schema"] == '"string"'
