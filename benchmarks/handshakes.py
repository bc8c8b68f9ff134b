"""TLS handshakes from one process: `python -m benchmarks.handshakes PORT AUTHORITY COUNT` prints seconds and count.

Every handshake is a full one, with a connection of its own, and ends with an answer to ApiVersions: before that a
client of TLS 1.3 does not know that the server has finished.
"""

import json
import socket
import ssl
import struct
import sys
import time

_API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


def main() -> None:
    port, authority, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    context = ssl.create_default_context(cafile=authority)
    failed = 0
    begun = time.monotonic()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with context.wrap_socket(plain, server_hostname="127.0.0.1") as link:
                link.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
                failed += not link.recv(4)
    print(json.dumps({"seconds": time.monotonic() - begun, "count": count, "failed": failed, "error": ""}))


if __name__ == "__main__":
    main()
