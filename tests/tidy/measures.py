"""Counts about the source itself: words, sizes, shapes. `python tests/tidy/measures.py` prints them."""

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "klamm"

PERSONS = re.compile(r"\b(whoever|whomever|somebody|nobody|everybody|anybody)\b", re.IGNORECASE)
"""A program has brokers, clients, members and callers."""

DIRECTIVES = ("# noqa", "# type:", "# fmt:", "# ruff:", "# cython:", "# mypy:")


@dataclass
class Source:
    """One file of Python and what a reader meets in it."""

    path: Path
    text: str = field(repr=False)

    @cached_property
    def name(self) -> str:
        """The path within the project."""
        return str(self.path.relative_to(ROOT))

    @cached_property
    def lines(self) -> int:
        return self.text.count("\n")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def bound_names(self) -> list[ast.Name]:
        """Every variable that is assigned, as a loop variable or otherwise."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]

    @cached_property
    def parameters(self) -> list[ast.arg]:
        """Every parameter of a function or lambda."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.arg)]

    @cached_property
    def lambdas(self) -> int:
        return sum(isinstance(node, ast.Lambda) for node in ast.walk(self.tree))

    @cached_property
    def comments(self) -> int:
        """Comments for readers; directives to tools are not counted, nor the reason behind one."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type == tokenize.COMMENT and not token.string.startswith(DIRECTIVES) for token in tokens)

    @cached_property
    def classes(self) -> list[str]:
        return [node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)]

    @property
    def is_kernel(self) -> bool:
        return "kernels" in self.name


def person_lines(path: Path) -> list[str]:
    """The lines of a text that speak of persons, with their places."""
    name = path.relative_to(ROOT)
    lines = path.read_text(encoding="utf-8").splitlines()
    return [f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if PERSONS.search(line)]


def sources(*folders: str) -> list[Source]:
    """The Python files below these folders of the project."""
    paths = sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return [Source(path, path.read_text(encoding="utf-8")) for path in paths if "__pycache__" not in path.parts]


def repeated_classes(files: list[Source]) -> dict[str, list[str]]:
    """Public class names that are defined in more than one file, wire messages apart: Kafka names those."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in files:
        if "protocol/messages" not in source.name:
            for name in source.classes:
                if not name.startswith("_"):
                    homes[name].append(source.name)
    return {name: paths for name, paths in homes.items() if len(paths) > 1}


def imported_modules(files: list[Source]) -> Iterator[str]:
    """Every module that an import statement, or a string that is a dotted path, names."""
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("klamm."):
                yield node.value


def main() -> None:
    files = sources("src/klamm", "simulation")
    lines = sum(source.lines for source in files)
    print(f"{len(files)} files, {lines} lines")
    for word in ("each", "found"):
        print(f"{word:>8}: {sum(name.id == word for source in files for name in source.bound_names)}")
    print(f" persons: {sum(len(PERSONS.findall(source.text)) for source in files)}")
    print(f" lambdas: {1000 * sum(source.lambdas for source in files) / lines:.1f} per 1,000 lines")
    print(f"comments: {1000 * sum(source.comments for source in files) / lines:.1f} per 1,000 lines")
    for name, paths in sorted(repeated_classes(files).items()):
        print(f"   twice: {name} in {', '.join(paths)}")
    for source in files:
        if source.lines > 600 and not source.is_kernel:
            print(f"    long: {source.name}, {source.lines} lines")


if __name__ == "__main__":
    main()
