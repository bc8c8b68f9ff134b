"""A schema registry as small as it gets: the REST interface of Confluent's, in memory; it counts questions."""

import base64
import json
import re
import uuid
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit


class SmallRegistry:
    """Subjects, their versions, and what was asked; `compiles` says whether it hands out Protobuf compiled."""

    def __init__(self, compiles=True):
        self.compiles = compiles
        self.schemas = {}
        self.subjects = {}
        self.requests = Counter()
        self.fails = 0
        self.url = None

    def register(self, subject, text, kind="AVRO", references=(), number=None):
        known = next((n for n, schema in self.schemas.items() if schema["schema"] == text), None)
        number = known or number or len(self.schemas) + 1
        schema = {"schema": text, "guid": str(uuid.UUID(int=number)), "references": list(references)}
        if kind != "AVRO":
            schema["schemaType"] = kind
        self.schemas[number] = schema
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, path, body, serialized):
        if match := re.fullmatch(r"/schemas/ids/(\d+)", path):
            return self.shown(int(match[1]), serialized)
        if match := re.fullmatch(r"/schemas/guids/([-0-9a-f]+)", path):
            return self.shown(uuid.UUID(match[1]).int, serialized)
        if match := re.fullmatch(r"/subjects/([^/]+)/versions", path):
            number = self.register(unquote(match[1]), body["schema"], body.get("schemaType", "AVRO"))
            return {"id": number}
        if match := re.fullmatch(r"/subjects/([^/]+)/versions/(\w+)", path):
            versions = self.subjects.get(unquote(match[1]), [])
            at = len(versions) if match[2] == "latest" else int(match[2])
            if not 0 < at <= len(versions):
                return None
            return {"subject": unquote(match[1]), "version": at, **self.shown(versions[at - 1], serialized)}
        return None

    def shown(self, number, serialized):
        schema = self.schemas.get(number)
        if schema is None:
            return None
        schema = {"id": number, **schema}
        if schema.get("schemaType") == "PROTOBUF" and serialized and self.compiles:
            schema["schema"] = base64.b64encode(self.compiled(schema)).decode()
        return schema

    def compiled(self, schema):
        import tempfile
        from pathlib import Path

        import grpc_tools
        from google.protobuf.descriptor_pb2 import FileDescriptorSet
        from grpc_tools import protoc

        with tempfile.TemporaryDirectory() as folder:
            for reference in schema["references"]:
                number = self.subjects[reference["subject"]][reference["version"] - 1]
                (Path(folder) / reference["name"]).write_text(self.schemas[number]["schema"])
            (Path(folder) / "main.proto").write_text(schema["schema"])
            common = Path(grpc_tools.__file__).parent / "_proto"
            assert not protoc.main(
                ["", f"-I{folder}", f"-I{common}", f"--descriptor_set_out={folder}/out", "main.proto"]
            )
            (file,) = FileDescriptorSet.FromString((Path(folder) / "out").read_bytes()).file
            return file.SerializeToString()


@contextmanager
def small_registry(**options):
    registry = SmallRegistry(**options)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.reply(None)

        def do_POST(self):
            self.reply(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, body):
            where = urlsplit(self.path)
            registry.requests[where.path] += 1
            if registry.fails:
                registry.fails -= 1
                code, answer = 503, {"error_code": 50301, "message": "not now"}
            else:
                answer = registry.answer(where.path, body, parse_qs(where.query).get("format") == ["serialized"])
                code = 200 if answer is not None else 404
                answer = answer if answer is not None else {"error_code": 40403, "message": "Schema not found"}
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
