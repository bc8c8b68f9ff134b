"""The site is built from the pages there are: every page linked, every link and anchor right."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {path for path in pages if not (tmp_path / "site" / path).exists()} == set()
    index = (tmp_path / "site" / "index.html").read_text()
    assert {str(path) for path in pages if path.name != "index.html" and f'href="{path}"' not in index} == set()
    assert (tmp_path / "site" / "search" / "search_index.json").stat().st_size > 100_000
    assert "fonts.googleapis" not in index
