"""Captures in processes that die at a chosen step: a statement of PostgreSQL, or a request that changes the cluster.

Each process is forked from a clean one, so that nothing tidies up behind it.
"""

import multiprocessing
import os

import psycopg

from klamm.client.connection import Connection
from pipeline.postgres.captures import Captured

KILLED = 9
_REQUESTS = ("InitProducerId", "AddPartitionsToTxn", "Produce", "EndTxn", "CreateTopics")
CHANGES = (
    "INSERT INTO {table} VALUES (4, 'dan', 1)",
    "UPDATE {table} SET balance = 2 WHERE id = 1",
    "DELETE FROM {table} WHERE id = 2",
    "UPDATE {table} SET id = 5 WHERE id = 3",
)

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["pipeline.postgres.capture_kills"])


def execute(url, *statements):
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.cursor().execute(statement)


def work(bootstrap, topic, options):
    """Capture the rows, change them, capture the changes: what comes after a kill does the rest of it."""
    captured = Captured(bootstrap, topic, options)
    captured.run()
    with psycopg.connect(options.url) as connection:
        # One transaction, or a kill would leave some of the changes to be made.
        cursor = connection.cursor()
        if not cursor.execute(f"SELECT 1 FROM {options.table} WHERE id = 4").fetchone():
            for statement in CHANGES:
                cursor.execute(statement.format(table=options.table))
    captured.run()
    captured.run()


def _die_at(cut, after):
    seen = 0

    def is_due():
        nonlocal seen
        seen += 1
        return seen == cut

    send = Connection.send

    def send_counted(self, api, *args, **keywords):
        if api.name not in _REQUESTS or not is_due():
            return send(self, api, *args, **keywords)
        if not after:
            os._exit(KILLED)
        answer = send(self, api, *args, **keywords)
        answer.add_done_callback(lambda _: os._exit(KILLED))
        return answer

    Connection.send = send_counted
    execute_statement = psycopg.Connection.execute

    def execute_counted(self, *args, **keywords):
        if not is_due():
            return execute_statement(self, *args, **keywords)
        if after:
            execute_statement(self, *args, **keywords)
        os._exit(KILLED)

    psycopg.Connection.execute = execute_counted


def _child(cut, after, arguments):
    _die_at(cut, after)
    work(*arguments)


def dies(cut, after, *arguments):
    """Run the work in a process that dies at a step; False when it came to its end before."""
    child = _forks.Process(target=_child, args=(cut, after, arguments))
    child.start()
    child.join(100)
    assert child.exitcode in (0, KILLED), f"the process ended with {child.exitcode}"
    return child.exitcode == KILLED
