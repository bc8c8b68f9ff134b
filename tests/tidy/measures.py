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

PARTICIPLE = re.compile(
    r"_?([a-z]+ed|broken|caught|chosen|done|given|gone|held|kept|lost|made|sent|shown|taken|told|written|worn)"
)
"""One word that names the result of a function: `_merged`; `_merge` and `is_merged` are verbs."""

DIRECTIVES = ("# noqa", "# type:", "# fmt:", "# ruff:", "# cython:", "# mypy:")


@dataclass
class Names:
    """What the code of one file names; numbers are lines."""

    bound: list[tuple[str, int]] = field(default_factory=list)
    """Every variable that is assigned, as a loop variable or otherwise."""
    parameters: list[tuple[str, int]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    aliases: list[str] = field(default_factory=list)
    """Types that are other names for types: `Offsets = dict[TopicPartition, int]`."""
    imports: list[str] = field(default_factory=list)
    strings: list[str] = field(default_factory=list)
    lambdas: int = 0
    participles: list[tuple[str, int]] = field(default_factory=list)
    """Functions that a participle names; properties and predicates may be adjectives."""


def find_names(text: str) -> Names:
    """Walk the tree of a file once for all checks, and let it go: kept trees make garbage collections slow."""
    tree = ast.parse(text)
    names = Names(aliases=list(_find_aliases(tree)))
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                names.bound.append((name, node.lineno))
            case ast.arg(arg=name):
                names.parameters.append((name, node.lineno))
            case ast.Constant(value=str(value)):
                names.strings.append(value)
            case ast.Lambda():
                names.lambdas += 1
            case ast.ClassDef(name=name):
                names.classes.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if PARTICIPLE.fullmatch(name):
                if not _is_adjective(node):
                    names.participles.append((name, node.lineno))
            case ast.Import(names=aliases):
                names.imports += [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(module), names=aliases):
                names.imports += [module, *(f"{module}.{alias.name}" for alias in aliases)]
    return names


def _is_adjective(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is read like an attribute, or answers yes or no."""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return (node.returns is not None and ast.unparse(node.returns) == "bool") or bool(
        decorators & {"property", "cached_property", "pytest.fixture"}
    )


def _find_aliases(tree: ast.Module) -> Iterator[str]:
    """Names of a module in the spelling of classes, such as `Row`; type variables and constants are none."""
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                word = name.removeprefix("_")
                is_class_like = word[:1].isupper() and any(letter.islower() for letter in word)
                if is_class_like and "TypeVar" not in ast.dump(value or node):
                    yield name


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
    def names(self) -> "Names":
        return find_names(self.text)

    @cached_property
    def comments(self) -> int:
        """Comments for readers; directives to tools are not counted, nor the reason behind one."""
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type == tokenize.COMMENT and not token.string.startswith(DIRECTIVES) for token in tokens)

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
    """Names of classes and type aliases that are defined in more than one file.

    A leading underscore does not make another name. Wire messages apart: Kafka names those.
    """
    homes: dict[str, list[str]] = defaultdict(list)
    for source in files:
        if "protocol/messages" not in source.name:
            for name in source.names.classes + source.names.aliases:
                homes[name.removeprefix("_")].append(source.name)
    return {name: paths for name, paths in homes.items() if len(paths) > 1}


def imported_modules(files: list[Source]) -> Iterator[str]:
    """Every module that an import statement, or a string that is a dotted path, names."""
    for source in files:
        yield from source.names.imports
        yield from (text for text in source.names.strings if text.startswith("klamm."))


def main() -> None:
    files = sources("src/klamm", "simulation")
    lines = sum(source.lines for source in files)
    print(f"{len(files)} files, {lines} lines")
    for word in ("each", "found"):
        print(f"{word:>8}: {sum(name == word for source in files for name, _ in source.names.bound)}")
    print(f" persons: {sum(len(PERSONS.findall(source.text)) for source in files)}")
    print(f" lambdas: {1000 * sum(source.names.lambdas for source in files) / lines:.1f} per 1,000 lines")
    print(f"comments: {1000 * sum(source.comments for source in files) / lines:.1f} per 1,000 lines")
    for name, paths in sorted(repeated_classes(files).items()):
        print(f"   twice: {name} in {', '.join(paths)}")
    for source in files:
        if source.lines > 600 and not source.is_kernel:
            print(f"    long: {source.name}, {source.lines} lines")


if __name__ == "__main__":
    main()
