"""Every row and every change is in the topic exactly once, wherever the process is killed, and the slot follows.

What breaks these: advancing the slot before the records are committed, storing the position outside of their
transaction, creating the slot before the position says so, reading the position before the old transaction has ended.
"""

import os

import pytest

from klamm.client import Admin
from pipeline.postgres.capture_kills import dies, execute, work
from pipeline.postgres.captures import Captured, options_for

CUTS_MAX = 250
STRIDE = 1 if os.environ.get("KLAMM_CAMPAIGN") == "all" else 6
"""Every sixth step in the usual run, every one with KLAMM_CAMPAIGN=all."""
EXPECTED = [
    ("r", 1, "1.00"),
    ("r", 2, "1.00"),
    ("r", 3, "1.00"),
    ("c", 4, "1.00"),
    ("u", 1, "2.00"),
    ("d", 2, None),
    ("d", 3, None),
    ("c", 5, "1.00"),
]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_step(database, klamm_broker, klamm_name, after):
    for cut in range(1 + 3 * after, CUTS_MAX, STRIDE):
        table, topic = f"accounts_{cut}", klamm_name("killed")
        with Admin(bootstrap_servers=klamm_broker.bootstrap) as admin:
            admin.create_topic(topic, 1)
        execute(
            database.url,
            f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, owner TEXT, balance NUMERIC(12, 2))",
            f"INSERT INTO {table} VALUES (1, 'ada', 1), (2, 'bob', 1), (3, 'eve', 1)",
        )
        options = options_for(database.url, table, slot=f"{database.name}_{cut}"[-60:])
        killed = dies(cut, after, klamm_broker.bootstrap, topic, options)
        work(klamm_broker.bootstrap, topic, options)
        captured = Captured(klamm_broker.bootstrap, topic, options)
        changes = [(op, number, row.get("balance")) for op, number, row in captured.changes()]
        assert changes == EXPECTED, f"cut {cut}"
        with Admin(bootstrap_servers=klamm_broker.bootstrap) as admin:
            listings = admin.list_transactions(states=["Ongoing"])
        assert captured.name not in {listing.transactional_id for listing in listings}, f"cut {cut}"
        database.execute(f"SELECT pg_drop_replication_slot('{options.slot}')", f"DROP TABLE {table}")
        if not killed:
            # The cuts have passed the end of the work.
            assert cut > 40
            return
    raise AssertionError(f"the work has more than {CUTS_MAX} steps")
