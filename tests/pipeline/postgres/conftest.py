"""One PostgreSQL for all tests of a worker, and a database of its own for each."""

import pytest

from pipeline.postgres.postgres_server import running_server


@pytest.fixture(scope="session")
def postgres():
    with running_server() as server:
        yield server


class Database:
    """One database of the server."""

    def __init__(self, server, name):
        self.server, self.name = server, name
        self.url = server.url(name)

    def execute(self, *statements):
        self.server.execute(*statements, database=self.name)

    def rows(self, query):
        return self.server.rows(query, database=self.name)


@pytest.fixture
def database(postgres, klamm_name):
    name = klamm_name("db").replace("-", "_").replace(".", "_").lower()
    postgres.execute(f"CREATE DATABASE {name}")
    yield Database(postgres, name)
    for (slot,) in postgres.rows(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'"):
        postgres.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")
