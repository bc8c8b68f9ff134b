"""The package as executors get it: what is in the archive, that it runs where nothing is installed, what it says."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline import executor_check, executor_package, sessions
from klamm.pipeline.executor_check import PACKAGES, platform_tag
from klamm.records import kernels_compiled

ARCHIVE_BYTES_MAX = 20_000_000
"""Every executor fetches the archive from the driver when it starts."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """As Spark unpacks it: into a folder of the archive's name, beside which its Python processes import."""
    folder = tmp_path_factory.mktemp("shipped")
    executor_package.write_archive(str(folder / "klamm.zip"))
    with zipfile.ZipFile(folder / "klamm.zip") as archive:
        archive.extractall(folder / "klamm")
    return folder


def python(folder, code, *more):
    """A Python without anything installed that looks into a folder, and into others for what they have."""
    path = os.pathsep.join(str(path) for path in (folder, *more))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture
def arrow(tmp_path):
    """A folder with pyarrow, as an executor has it."""
    folder = tmp_path / "arrow"
    folder.mkdir()
    (folder / "pyarrow").symlink_to(Path(pa.__file__).parent)
    return folder


WORK = """
import json, sys
import klamm.pipeline
from klamm.pipeline import task_writer
from klamm.pipeline import partition_reader
from klamm.records import BatchView, Codec, build_batch, compression, kernels_compiled
from klamm.records.kernels import decode
packed = [compression.decompress(codec, compression.compress(codec, b"word" * 9)) for codec in Codec]
print(json.dumps({"same": packed == [b"word" * 9] * 5, "file": decode.__file__, "compiled": kernels_compiled(),
                  "packages": sorted({name.split(".")[1] for name in sys.modules if name.startswith("klamm.")})}))
"""


def test_a_python_with_nothing_but_pyarrow_runs_it(unpacked, arrow):
    done = python(unpacked, WORK, arrow)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["same"]
    assert printed["file"].startswith(str(unpacked))
    assert printed["compiled"] == kernels_compiled()
    assert not executor_package._SERVER_PACKAGES & set(printed["packages"])


def test_packages_that_clients_do_not_import_are_left_out(unpacked):
    packages = {path.name for path in (unpacked / "klamm").iterdir() if path.is_dir()}
    assert {"model", "records", "client", "pipeline", "carried"} <= packages
    assert not executor_package._SERVER_PACKAGES & packages
    assert not list(unpacked.rglob("__pycache__"))
    assert sum(path.stat().st_size for path in unpacked.glob("*.zip")) < ARCHIVE_BYTES_MAX


@pytest.mark.parametrize("missing", ["pyarrow", "crc32c"])
def test_what_a_python_lacks_is_said_in_one_sentence(unpacked, arrow, tmp_path, missing):
    folder = tmp_path / "copy"
    folder.mkdir()
    os.symlink(unpacked / "klamm", folder / "klamm")
    if missing != "pyarrow":  # another platform than the driver's: what was carried is not for it
        code = "import sysconfig; sysconfig.get_config_vars()['SOABI'] = 'cpython-311-other'\nimport klamm.pipeline"
        done = python(folder, code, arrow)
    else:
        done = python(folder, "import klamm.pipeline")
    words = done.stderr.splitlines()[-1]
    assert f"ConfigError: the Python of this executor, {sys.executable}" in words
    assert f"lacks {missing}" in words
    assert "spark.pyspark.python" in words


def test_kernels_that_do_not_load_here_run_as_python(unpacked, arrow, tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    with zipfile.ZipFile(unpacked / "klamm.zip") as archive:
        archive.extractall(folder / "klamm")
    suffix = f".{platform_tag()}.so"
    (folder / "klamm" / "records" / "kernels" / f"decode{suffix}").write_bytes(b"compiled for something else")
    done = python(folder, WORK, arrow)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed["same"], printed["compiled"], os.path.basename(printed["file"])) == (True, False, "decode.py")


def test_what_an_executor_has_itself_wins(unpacked, arrow, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    (own / "lz4.py").write_text("MINE = True")
    done = python(unpacked, "import klamm.pipeline, lz4; print(lz4.MINE)", own, arrow)
    assert done.stdout == "True\n", done.stderr


def test_an_installed_package_carries_nothing():
    before = list(sys.path)
    executor_check.check_executor()
    assert sys.path == before
    assert set(PACKAGES) <= set(sys.modules) | {"lz4", "cramjam", "crc32c", "zstandard"}


class Context:
    """As much of a SparkContext as shipping asks for."""

    def __init__(self, master):
        self.master = master
        self.listArchives = []
        self.files = []
        self.environment = {"PYTHONPATH": "own"}

    def addArchive(self, path):  # noqa: N802 - Spark's name
        self.listArchives.append(f"spark://driver/files/{os.path.basename(path)}")

    def addPyFile(self, path):  # noqa: N802
        self.files.append(path)


class Session:
    def __init__(self, master):
        self.sparkContext = Context(master)


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[4,2]", True),
        ("local-cluster[2,1,512]", False),
        ("spark://a:7077,b:7077", False),
        ("yarn", False),
        ("k8s://https://a:6443", False),
    ],
)
def test_it_is_shipped_once_to_masters_elsewhere(monkeypatch, tmp_path, master, local):
    monkeypatch.setattr(executor_package, "_folder", lambda: str(tmp_path))
    monkeypatch.setattr(executor_package, "write_archive", lambda path: Path(path).touch())
    spark = Session(master)
    assert [executor_package.ship_package(spark), executor_package.ship_package(spark)] == [not local, False]
    assert len(spark.sparkContext.listArchives) == (0 if local else 1)
    assert spark.sparkContext.environment == {"PYTHONPATH": "own" if local else f"{tmp_path}:own"}
    assert not executor_package.ship_package(object())  # Spark Connect: no context here


def test_modules_of_the_user_go_along(monkeypatch, tmp_path):
    monkeypatch.setattr(executor_package, "_folder", lambda: str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_module.py").touch()
    (tmp_path / "own_package" / "__pycache__").mkdir(parents=True)
    for name in ("__init__.py", "inner.py", "table.csv", "__pycache__/inner.pyc"):
        (tmp_path / "own_package" / name).touch()
    spark = Session("yarn")
    shipped = [
        executor_package.ship_module(spark, word)
        for word in ("own_module", "own_package.inner", "json", "pytest", "math")
    ]
    assert shipped == [True, True, False, False, False]
    assert spark.sparkContext.files == [str(tmp_path / "own_module.py"), str(tmp_path / "packed" / "own_package.zip")]
    with zipfile.ZipFile(tmp_path / "packed" / "own_package.zip") as archive:
        assert sorted(archive.namelist()) == [
            f"own_package/{word}" for word in ("__init__.py", "inner.py", "table.csv")
        ]
    # Python workers on this machine import from PYTHONPATH, and not from the other folders of this process.
    assert executor_package.ship_module(Session("local[2]"), "own_module")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert not executor_package.ship_module(Session("local[2]"), "own_module")


def test_a_package_that_is_not_installed_cannot_go_along():
    with pytest.raises(ConfigError, match="no-such-package is not installed"):
        list(executor_package._files_of("no-such-package"))


@pytest.mark.parametrize(
    ("master", "setting", "environment", "expected"),
    [
        ("local[*]", None, None, sys.executable),
        ("local[*]", None, "/opt/python", "/opt/python"),
        ("spark://a:7077", None, None, f"python{sys.version_info[0]}.{sys.version_info[1]}"),
        ("spark://a:7077", None, "/opt/python", "/opt/python"),
        ("spark://a:7077", "/srv/python", "/opt/python", "/srv/python"),
        (None, None, None, None),
    ],
)
def test_which_python_executors_run(monkeypatch, master, setting, environment, expected):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if environment:
        monkeypatch.setenv("PYSPARK_PYTHON", environment)
    before = dict(os.environ)
    with sessions._worker_python(master, setting):
        assert os.environ.get("PYSPARK_PYTHON") == expected
        if expected is not None and expected.startswith("python"):
            assert os.environ["PATH"].split(os.pathsep)[0] == os.path.dirname(sys.executable)
    assert dict(os.environ) == before
