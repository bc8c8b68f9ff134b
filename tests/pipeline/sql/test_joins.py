"""Streams joined with tables: as they were at the time, and as they are, while they change."""

import json
import random

import pytest

from klamm.pipeline.testing import Raw, run

pytestmark = pytest.mark.timeout(600)

RATES = """
CREATE TABLE rates (currency STRING, rate DOUBLE) WITH (key = 'currency');
CREATE STREAM payments (id INT, currency STRING, amount DOUBLE, at TIMESTAMP) WITH (timestamp = 'at');
CREATE STREAM paid WITH (key = 'id') AS
  SELECT p.id, p.amount * r.rate AS value, r.rate
  FROM payments p LEFT JOIN rates FOR SYSTEM_TIME AS OF p.at AS r ON p.currency = r.currency;
CREATE STREAM found WITH (key = 'id') AS
  SELECT p.id, rates.rate FROM payments p JOIN rates FOR SYSTEM_TIME AS OF p.at ON p.currency = rates.currency;
"""
START_MS = 1_767_225_600_000


def moment(second):
    return f"2026-01-01T00:{second // 60:02d}:{second % 60:02d}.000000Z"


def test_the_value_at_the_time_is_what_python_finds_in_the_history(spark):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    history, steps, expected = [], [], {}
    number = 0
    for _ in range(3):
        changes = []
        for _ in range(12):
            currency, second = chance.choice("xyz"), chance.randrange(300)
            rate = None if chance.random() < 0.25 else float(chance.randrange(1, 90))
            history.append((second, len(history), currency, rate))
            value = None if rate is None else json.dumps({"currency": currency, "rate": rate}).encode()
            changes.append(Raw(currency.encode(), value, START_MS + second * 1000))
        payments = []
        for _ in range(20):
            number += 1
            currency, second = chance.choice("wxyz"), chance.randrange(310)
            payments.append({"id": number, "currency": currency, "amount": 2.0, "at": moment(second)})
            then = [each for each in history if each[2] == currency and each[0] <= second]
            expected[number] = max(then)[3] if then else None
        steps.append({"rates": changes, "payments": payments})
    out = run(RATES, steps, spark=spark)
    out.expect(
        "paid",
        [{"id": each, "value": rate and 2 * rate, "rate": rate} for each, rate in expected.items()],
    )
    out.expect("found", [{"id": each, "rate": rate} for each, rate in expected.items() if rate is not None])
    assert any(rate is None for rate in expected.values())
