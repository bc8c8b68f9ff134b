"""A stand-in for a registry of another product: a member of the group `sr` with that product's bytes, and its address.

The bytes are those of Karapace 6 and of Confluent's registry 8: names, order and version of the fields, and which
member each of them elects when it leads the group.
"""

import asyncio
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from klamm.client.client_settings import consumer_settings
from klamm.client.cluster import ClusterClient
from klamm.client.consumer.offsets import GroupCoordinator
from klamm.client.errors import KafkaError
from klamm.client.group_member import CoordinatedMember
from klamm.model.errors import ErrorCode

KARAPACE, CONFLUENT = "karapace", "confluent"
_HEARTBEAT_S = 0.1
_SMALL_PORTS = range(10_000, 20_000)
"""Below the ports that systems give away: as texts, they are smaller than all of those."""


def encode(fields):
    return json.dumps(fields, separators=(",", ":")).encode()


class ForeignRegistry:
    """Joins on `start`; `is_small` is whether its URL comes before those of other registries."""

    def __init__(self, dialect, bootstrap, group, *, is_small=True, eligible=True):
        self.dialect = dialect
        self.eligible = eligible
        self.requests = []
        self.assignments = []
        self.leads_group = False
        self._http = serve_requests(self, is_small)
        self.host, self.port = self._http.server_address
        self._bootstrap = bootstrap
        self._group = group
        self._was_elected = False
        self._joined = threading.Event()
        self._stopping = threading.Event()
        self._failure = None
        self._threads = [
            threading.Thread(target=self._http.serve_forever, daemon=True),
            threading.Thread(target=self._run, daemon=True),
        ]

    @property
    def url(self):
        return f"http://{self.host}:{self.port}"

    @property
    def master_url(self):
        """The address that the last assignment names; None before the first, and when it names none."""
        identity = self.assignments[-1].get("master_identity") if self.assignments else None
        return identity and f"{identity['scheme']}://{identity['host']}:{identity['port']}"

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        assert self._joined.wait(60), self._failure
        return self

    def __exit__(self, *_):
        self.leave()

    def leave(self):
        """Leave the group, and refuse connections."""
        self._stopping.set()
        self._threads[1].join(60)
        self._http.shutdown()
        self._http.server_close()
        assert self._failure is None, self._failure

    # Bytes

    def encode_identity(self):
        if self.dialect == KARAPACE:
            return {
                "version": 2,
                "karapace_version": "6.2.0",
                "host": self.host,
                "port": self.port,
                "scheme": "http",
                "master_eligibility": self.eligible,
            }
        return {
            "version": 1,
            "host": self.host,
            "port": self.port,
            "master_eligibility": self.eligible,
            "scheme": "http",
            "leader": self._was_elected,
        }

    def elect(self, members):
        """Return the assignment, by the rules of the product."""
        identities = {member_id: json.loads(data) for member_id, data in members.items()}
        eligible = [member_id for member_id, identity in identities.items() if identity["master_eligibility"]]
        if self.dialect == KARAPACE:
            # Karapace assigns a member that may not lead rather than none, which then does not lead.
            chosen = min(eligible or identities, key=lambda member_id: get_url(identities[member_id]))
            identity = {
                "version": 2,
                "karapace_version": "6.2.0",
                **{name: identities[chosen][name] for name in ("host", "port", "scheme", "master_eligibility")},
            }
            return encode({"master": chosen, "master_identity": identity, "error": 0})
        if not eligible:
            return encode({"version": 1, "error": 0})
        leading = [member_id for member_id in eligible if identities[member_id].get("leader")]
        chosen = leading[0] if len(leading) == 1 else min(eligible, key=lambda name: get_url(identities[name]))
        return encode({"version": 1, "error": 0, "master": chosen, "master_identity": identities[chosen]})

    def read_assignment(self, data):
        """Decode as the product does; Confluent's refuses identities with fields that it does not have."""
        fields = json.loads(data)
        identity = fields.get("master_identity")
        if identity is not None:
            assert {"host", "port", "scheme", "master_eligibility"} <= identity.keys()
            if self.dialect == CONFLUENT:
                known = {"version", "host", "port", "master_eligibility", "scheme", "leader", "karapace_version"}
                assert identity.keys() <= known
        return fields

    # Membership

    def _run(self):
        try:
            asyncio.run(self._take_part())
        except Exception as error:  # noqa: BLE001 - shown by the test
            self._failure = error
            self._joined.set()

    async def _take_part(self):
        cluster = ClusterClient(consumer_settings({"bootstrap.servers": self._bootstrap}, {}))
        await cluster.start()
        member = CoordinatedMember(GroupCoordinator(cluster, self._group), "sr", session_ms=10_000, rebalance_ms=30_000)
        try:
            while not self._stopping.is_set():
                try:
                    await self._join(member)
                except KafkaError as error:
                    if error.code not in (ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS):
                        raise
                    continue
                await self._keep_alive(member)
        finally:
            await member.leave("the test is over")
            await cluster.close()

    async def _keep_alive(self, member):
        """Send heartbeats until the group rebalances, or the test ends."""
        while not await member.heartbeat():
            if await asyncio.to_thread(self._stopping.wait, _HEARTBEAT_S):
                return

    async def _join(self, member):
        joined = await member.join([("v0", encode(self.encode_identity()))])
        self.leads_group = joined.leader == joined.member_id
        assignments = {}
        if self.leads_group:
            members = {other.member_id: bytes(other.metadata) for other in joined.members}
            assignments = dict.fromkeys(members, self.elect(members))
        assignment = self.read_assignment(await member.sync(joined.protocol_name, assignments))
        self._was_elected = assignment.get("master") == member.member_id
        self.assignments.append(assignment)
        self._joined.set()


def get_url(identity):
    return f"{identity['scheme']}://{identity['host']}:{identity['port']}"


def serve_requests(registry, is_small):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            registry.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            answer = encode({"id": 4711})
            self.send_response(200)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    if not is_small:
        return ThreadingHTTPServer(("127.0.0.2", 0), Handler)
    for port in _SMALL_PORTS:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                continue
        try:
            return ThreadingHTTPServer(("127.0.0.1", port), Handler)
        except OSError:
            continue
    raise AssertionError("no free port")
