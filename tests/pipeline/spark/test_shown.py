"""What the guide and the example show is what happens: they are run, not trusted."""

import importlib.util
import re
from pathlib import Path

import pytest

import klamm
from pipeline.small_registry import small_registry

pytestmark = pytest.mark.timeout(600)
ROOT = Path(__file__).parents[3]


def test_the_programs_of_the_guide(spark, patiently, klamm_own_broker, tmp_path, capsys):
    text = (ROOT / "docs" / "guides" / "spark.md").read_text()
    text = text.replace("127.0.0.1:9092", klamm_own_broker.bootstrap).replace("checkpoints/", f"{tmp_path}/")
    names = {}
    with small_registry() as registry:
        blocks = re.findall(r"```python\n(.*?)```", text.replace("http://127.0.0.1:8081", registry.url), re.DOTALL)
        assert len(blocks) == 4
        for block in blocks:
            code = compile(block, "spark.md", "exec")
            if "readStream" in block:
                patiently(exec, code, names)
            else:
                exec(code, names)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["[Row(drink='espresso'), Row(drink='espresso')]", "2", "[Row(drink='espresso', cents=300)]"]


def test_the_example(spark, patiently, klamm_own_broker, tmp_path):
    found = importlib.util.spec_from_file_location("suspicious", ROOT / "examples" / "pipeline" / "suspicious.py")
    example = importlib.util.module_from_spec(found)
    found.loader.exec_module(example)
    expected = example.pay(klamm_own_broker.bootstrap, 300)
    patiently(lambda: example.watch(spark, klamm_own_broker.bootstrap, str(tmp_path / "c")).awaitTermination())
    if expected:
        assert klamm.read_topic("suspicious", bootstrap=klamm_own_broker.bootstrap).num_rows == expected
