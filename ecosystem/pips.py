"""Programs from the Python package index, each in an environment of its own: their dependencies disagree."""

import shutil
import sys
from pathlib import Path

from compat import toolchain

PYTHON = Path(__file__).resolve().parent / "python"


def interpreter(program: str) -> Path:
    """Python with exactly what `python/<program>/requirements.txt` pins."""
    requirements = PYTHON / program / "requirements.txt"

    def build(folder: Path) -> None:
        # Scripts of an environment name its path, and the folder is renamed once whole: only `python -m` is used.
        toolchain.run_build([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], folder)
        packages = next((folder / "env" / "lib").glob("python3*")) / "site-packages"
        toolchain.run_build(
            [
                sys.executable,
                *("-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages), "-r", str(requirements)),
            ],
            folder,
        )
        shutil.copy(requirements, folder)

    return toolchain.cached(f"ecosystem-{program}", [requirements], build) / "env" / "bin" / "python"
