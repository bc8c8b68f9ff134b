"""A session whose workers run another Python: what has klamm is taken, what has not is refused with a sentence."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.worker_python import check_worker_python


def session(python, master="local[2]"):
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec=str(python), environment={}))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """The Python of an environment without packages."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=100)
    return folder / "bin" / "python"


def test_a_python_without_klamm_is_refused_with_the_variable_to_set(bare_python, monkeypatch, tmp_path):
    # Workers inherit the variable and the folder, by which a checkout can be imported.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refusal:
        check_worker_python(session(bare_python))
    assert str(refusal.value) == (
        f"the workers of this session run {bare_python}, which cannot import klamm and pyarrow: "
        f"set PYSPARK_PYTHON={sys.executable} before the session is created, or install klamm there"
    )


def test_a_python_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="set PYSPARK_PYTHON="):
        check_worker_python(session(tmp_path / "nowhere"))


def test_this_python_is_not_probed(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("probed"))
    check_worker_python(session(sys.executable))


def test_executors_on_other_machines_are_not_probed(bare_python):
    check_worker_python(session(bare_python, "spark://head:7077"))
    check_worker_python(SimpleNamespace())
