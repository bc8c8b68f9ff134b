"""What the example shows is what happens: it is run, not trusted."""

import importlib.util
from pathlib import Path

import pytest

import klamm

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]


def test_the_example(spark, patiently, klamm_own_broker, tmp_path):
    spec = importlib.util.spec_from_file_location("suspicious", ROOT / "examples" / "pipeline" / "suspicious.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    expected = example.pay(klamm_own_broker.bootstrap, 300)
    patiently(lambda: example.watch(spark, klamm_own_broker.bootstrap, str(tmp_path / "c")).awaitTermination())
    if expected:
        assert klamm.read_topic("suspicious", bootstrap=klamm_own_broker.bootstrap).num_rows == expected
