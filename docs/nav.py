"""Fills the sections Reference and Decisions of the site's navigation with the pages of their folders."""  # noqa: INP001 - a hook of mkdocs

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDERS = {"Reference": "reference", "Decisions": "decisions"}


def on_config(config: Any) -> Any:
    """Called by mkdocs before it looks at the navigation."""
    _fill(config["nav"], Path(config["docs_dir"]))
    return config


def _fill(section: list[Any], docs: Path) -> None:
    for item in section:
        for title, pages in item.items():
            if folder := FOLDERS.get(title):
                item[title] = [f"{folder}/{page.name}" for page in sorted((docs / folder).glob("*.md"))]
            elif isinstance(pages, list):
                _fill(pages, docs)
