"""What keeps a table from being captured is found before anything is created, with its cure; the cure works."""

import pytest

from klamm.pipeline.postgres.database import PostgresError, PostgresTable
from klamm.pipeline.postgres.table_checks import check_table
from pipeline.postgres.captures import Captured, options_for
from pipeline.postgres.postgres_server import running_server

ACCOUNTS = "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner TEXT)"


def problems(url, **more):
    table = PostgresTable(options_for(url, **more))
    try:
        return list(check_table(table))
    finally:
        table.close()


def cure(database, message):
    """Execute the statement that a problem ends with."""
    database.execute(message.rpartition(": ")[2])


def test_nothing_is_wrong(database):
    database.execute(ACCOUNTS)
    assert problems(database.url) == []


def test_no_table_and_no_ordinary_one(database):
    assert problems(database.url) == [f"{database.name} has no table public.accounts"]
    database.execute("CREATE VIEW accounts AS SELECT 1 AS id")
    assert "is no ordinary table" in problems(database.url)[0]


def test_no_primary_key(database):
    database.execute("CREATE TABLE accounts (id BIGINT)")
    (message,) = problems(database.url)
    assert "has no primary key" in message
    cure(database, message)
    assert problems(database.url) == []


def test_another_primary_key(database):
    database.execute("CREATE TABLE accounts (id BIGINT, shop INT, PRIMARY KEY (shop, id))")
    (message,) = problems(database.url)
    assert message.endswith("is shop, id: write key = 'shop, id'")
    assert problems(database.url, key=("shop", "id")) == []


@pytest.mark.parametrize("identity", ["NOTHING", "USING INDEX owners"])
def test_the_replica_identity(database, identity):
    database.execute("CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner TEXT NOT NULL)")
    database.execute(
        "CREATE UNIQUE INDEX owners ON accounts (owner)", f"ALTER TABLE accounts REPLICA IDENTITY {identity}"
    )
    (message,) = problems(database.url)
    assert "REPLICA IDENTITY" in message
    cure(database, message)
    assert problems(database.url) == []


def test_rights(database, postgres):
    role = f"reader_{database.name}"
    postgres.execute(f"CREATE ROLE {role} LOGIN")
    try:
        database.execute(ACCOUNTS)
        url = postgres.url(database.name, role)
        messages = problems(url)
        assert [message.partition(":")[0] for message in messages] == [
            f"the role {role} may not replicate",
            f'{role} may not read "public"."accounts"',
            f"{role} may not create a publication of the table; postgres runs",
        ]
        for message in messages:
            cure(database, message)
        assert problems(url) == []
    finally:
        database.execute("DROP TABLE accounts")
        postgres.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_publication_that_leaves_something_out(database):
    slot = options_for(database.url).publication
    database.execute(ACCOUNTS, "CREATE TABLE others (id INT)", f'CREATE PUBLICATION "{slot}" FOR TABLE others')
    (message,) = problems(database.url)
    assert "does not have the table" in message
    cure(database, message)
    assert problems(database.url) == []
    database.execute(f"ALTER PUBLICATION \"{slot}\" SET (publish = 'insert')")
    (message,) = problems(database.url)
    assert "leaves out some changes" in message
    cure(database, message)
    assert problems(database.url) == []


def test_a_server_without_logical_decoding_or_free_slots(klamm_broker):
    with running_server(wal_level="replica", max_replication_slots="0") as server:
        server.execute(ACCOUNTS)
        level, slots = problems(server.url())
        assert level == "wal_level is replica: ALTER SYSTEM SET wal_level = 'logical', then restart PostgreSQL"
        assert "all 0 replication slots are in use" in slots
        # A capture that is started nevertheless fails with PostgreSQL's words.
        topic = klamm_broker.topic("accounts")
        with pytest.raises(PostgresError, match="max_replication_slots"):
            Captured(klamm_broker.bootstrap, topic, options_for(server.url())).run()


def test_no_server():
    with pytest.raises(PostgresError, match="refused"):
        problems("postgresql://127.0.0.1:1/x")
