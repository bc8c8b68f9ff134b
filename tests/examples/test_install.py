"""tools/install.py: the progress it shows for the output of pip."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "install.py"


@pytest.fixture
def install():
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pips_lines_become_a_few_words(install):
    progress = install.PipProgress()
    for line, words in (
        ("Obtaining file:///here", "starting pip"),
        ("Collecting pyspark==4.3.* (from klamm==0.1.0)", "resolving pyspark==4.3.*"),
        ("  Downloading https://host/path/pyspark-4.3.0.tar.gz (456.1 MB)", "downloading pyspark-4.3.0"),
        ("Progress 228050000 of 456100000", "downloading pyspark-4.3.0: 228 of 456 MB"),
        ("  Downloading click-8.1.0-py3-none-any.whl (99 kB)", "downloading click-8.1.0"),
        ("Progress 1000 of 99000", "downloading click-8.1.0"),
        ("Building wheels for collected packages: pyspark", "downloading click-8.1.0"),
        ("  Building wheel for pyspark (pyproject.toml): started", "building pyspark"),
        ("Installing collected packages: py4j, pyspark, klamm", "installing 3 packages"),
    ):
        progress.read_line(line)
        assert progress.step == words, line


def test_a_failure_shows_what_pip_said(install, capfd):
    assert install.install(["--no-index", "--no-cache-dir", "a-package-that-is-nowhere"]) != 0
    assert "a-package-that-is-nowhere" in capfd.readouterr().out
