"""Statements on Spark, without a cluster: each kind of query against what plain Python makes of the same rows."""

import random
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from klamm.pipeline.sql import SqlError
from klamm.pipeline.testing import Deleted, run

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipeline" / "sql"
pytestmark = pytest.mark.timeout(600)


def at(seconds):
    return f"2026-01-01T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.000000Z"


def test_the_bank(spark):
    """Two steps; between them a customer goes. The tables are what Python says they are."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    owners = {"a": "Ann", "b": "Bob", "c": "Ann"}
    paid = []
    steps = []
    suspicious = []
    for number in range(2):
        now = dict(owners) if not number else {**owners, "c": None}
        rows = [
            {
                "account": chance.choice("abc"),
                "amount": chance.choice([5, 10, -5, 950, -950]),
                "at": at(number * 60 + index),
            }
            for index in range(8)
        ]
        bad = ["{no json", {"account": "a", "amount": "much"}, {"amount": 5}] if number else []
        customers = [{"id": account, "owner": owner} for account, owner in owners.items()] if not number else []
        steps.append({"customers": customers + ([Deleted(id="c")] if number else []), "payments": rows + bad})
        paid += rows
        suspicious += [{**row, "owner": now[row["account"]]} for row in rows if row["amount"] > 900]
    out = run(EXAMPLES / "bank.sql", steps, spark=spark)

    balances = Counter()
    spent = defaultdict(lambda: [0, 0])
    for paid_row in paid:
        balances[paid_row["account"]] += paid_row["amount"]
        if paid_row["amount"] > 0:
            minute = spent[paid_row["account"], paid_row["at"][:17] + "00.000000Z"]
            minute[0] += paid_row["amount"]
            minute[1] += 1
    left = {account: balance for account, balance in balances.items() if balance}
    out.expect("balances", [{"account": account, "balance": float(balance)} for account, balance in left.items()])
    out.expect(
        "spend_per_minute",
        [
            {"account": account, "minute": minute, "spent": float(amount), "payments": count}
            for (account, minute), (amount, count) in spent.items()
        ],
    )
    out.expect("suspicious", [{**payment, "amount": float(payment["amount"])} for payment in suspicious])
    wealth = Counter()
    for account, balance in left.items():
        if account != "c":
            wealth[owners[account]] += balance
    known = {owners[account] for account in left if account != "c"}
    out.expect("wealth", [{"owner": owner, "wealth": float(wealth[owner])} for owner in known])
    assert [(payment.value, payment.offset) for payment in out.dead_letters["payments"]] == [
        (b"{no json", 16),
        (b'{"account": "a", "amount": "much"}', 17),
        (b'{"amount": 5}', 18),
    ]
    assert "is null" in out.dead_letters["payments"][2].error


@pytest.mark.long
def test_words_joins_sessions_and_doubles(spark):
    out = run(EXAMPLES / "words.sql", {"lines": ["To be, or not", "to be"]}, spark=spark)
    out.expect("counts", [{"word": word, "n": n} for word, n in {"to": 2, "be": 2, "or": 1, "not": 1}.items()])
    orders = [(1, "x", 0), (2, "x", 60), (1, "x", 90), (3, "y", 100)]
    out = run(
        EXAMPLES / "orders.sql",
        [
            {
                "orders": [{"id": order, "customer": who, "at": at(when)} for order, who, when in orders],
                "payments": [
                    {"order_id": 1, "paid": 9.5, "paid_at": at(30)},
                    {"order_id": 3, "paid": 1, "paid_at": at(99)},
                ],
            },
            {"orders": [{"id": 4, "customer": "z", "at": at(7200)}]},
        ],
        spark=spark,
    )
    out.expect("paid_orders", [{"id": 1, "customer": "x", "paid": 9.5}])
    out.expect(
        "visits",
        [{"customer": "x", "started": at(0), "orders": 2}, {"customer": "y", "started": at(100), "orders": 1}],
    )


def test_what_spark_refuses_is_told_where_it_was_written(spark):
    stream = "CREATE STREAM s (user STRING);\n"
    for select, place, words in (
        ("SELECT user,\n  usr FROM s", "3:3", "usr"),
        ("SELECT user FROM s WHERE (", "2:", "yntax"),
        ("SELECT user, count(*) AS n FROM s GROUP BY user", "2:", "watermark"),
    ):
        with pytest.raises(SqlError) as refused:
            run(f"{stream}CREATE STREAM x AS {select};", {"s": [{"user": "a"}]}, spark=spark)
        assert f"pipeline.sql:{place}" in str(refused.value)
        assert words in str(refused.value)
    with pytest.raises(Exception, match="a record of s is bad: s-0 offset 1"):
        run(
            "CREATE STREAM s (user STRING) WITH (bad_records = 'fail'); CREATE STREAM x AS SELECT * FROM s;",
            {"s": [{"user": "a"}, "nonsense"]},
            spark=spark,
        )
