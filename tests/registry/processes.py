"""`klamm registry` as a process of a test."""

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.error
import urllib.request

from harness import KLAMM

READY = re.compile(r"Klamm registry is ready on (http://\S+),")


class RegistryProcess:
    def __init__(self, bootstrap, topic, group, *more):
        self.process = subprocess.Popen(
            [*KLAMM, "registry", "-b", bootstrap, "--port", "0", "--topic", topic, "--group", group, *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert READY.match(line), line + self.process.stderr.read()
        self.url = READY.match(line)[1]

    def request(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.loads(response.read())

    def read_readiness(self):
        """The fields of /health/ready, which answers 503 during an election."""
        try:
            return self.request("GET", "/health/ready")
        except urllib.error.HTTPError as error:
            with error:
                return json.loads(error.read())

    def read_metric(self, name):
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=60) as response:
            lines = response.read().decode().splitlines()
        return float(next(line.split()[-1] for line in lines if line.startswith(f"klamm_registry_{name}")))

    def end(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)
        if self.process.returncode is None:
            # Shown by pytest if the test fails.
            print(self.url, self.process.communicate(timeout=60)[1])
        return self.process.returncode


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
