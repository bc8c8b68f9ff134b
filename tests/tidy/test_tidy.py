"""The source keeps the habits that CONTRIBUTING describes: words, sizes, one name for one thing, nothing dead.

A ceiling is what is there today and may only be lowered. A new word goes into `NAMES` or `PERSONS` (`measures.py`), not
into a reviewer's memory.
"""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from klamm.protocol.apis import BY_NAME

from .measures import PACKAGE, ROOT, Source, imported_modules, person_lines, repeated_classes, sources

FILES = sources("src/klamm", "simulation")
PRODUCT = [source for source in FILES if source.path.is_relative_to(PACKAGE)]
LINES = sum(source.lines for source in PRODUCT)

NAMES = {"each": 0, "found": 1, "thing": 0, "stuff": 0, "said": 0, "told": 0, "heard": 0, "asked": 0}
"""Variables that name no noun, and how many are left: `found` is a field of the JSON that `klamm doctor` prints.

A text is a `message`, an `output` or a `detail`; what was asked for is a `request` or a `target`.
"""

PARAMETERS_LEFT = 0
"""Parameters with one of these names: `found` again, for the JSON of `klamm doctor`."""

PERSONS_LEFT = 0

FUNCTIONS_DIALECT = re.compile(
    r"^ *(?:async )?def (_?(?:asked|come_back|gently|guardian|hear|heard|insist|insist_on|knock|last_words|learn|look"
    r"|said|say|sip|speak|storm|tell|told|waits|witness|\w+_(?:anybody|everybody)))\(",
    re.MULTILINE,
)
"""Functions whose names are no verb with an object: `report_lag` and `parse_voters` are."""
FUNCTIONS_LEFT = 0

VERBS = {"committed", "feed", "_feed", "paused", "succeed", "_succeed", "wrapped"}
"""Functions that `PARTICIPLE` (`measures.py`) takes for participles: verbs, two methods of Kafka's consumer, and the
function that a decorator returns."""

OUTSIDE = ("benchmarks", "compat", "docs", "ecosystem", "examples", "simulation", "tests", "tools")
"""Folders of Python beside the product; a folder of `tests/` has a ceiling of its own."""

NOUNS_LEFT: dict[str, int] = {}
"""Variables and parameters of `NAMES` that are left, by folder; 0 where a folder is not named."""

PERSON_LINES_LEFT: dict[str, int] = {}
"""Lines with a word of `PERSONS` that are left, by folder; 0 where a folder is not named."""

PAGES = ("*.md", "docs/**/*.md", *(f"{folder}/*.md" for folder in OUTSIDE))
"""Prose that users and contributors read."""

LAMBDAS_PER_1000_LINES = 0.5
COMMENTS_PER_1000_LINES = 25.0
LINES_MAX = 600
ENTRIES_MAX = 12
"""Files and folders at one level of `server/`."""

REPEATED_NAMES: set[str] = set()
"""Classes and type aliases that are left with two meanings; nothing may be added."""

MODULES_DIALECT = {
    "alarm", "arrival", "asking", "bounded", "care", "exits", "far_folder", "given", "holdings", "looking", "mending",
    "moments", "nursery", "orders", "room", "shelf", "shipping", "spares", "strangers", "surroundings", "view",
    "world",
}  # fmt: skip
"""File names that a reader who knows Kafka cannot guess."""

STARTED_BY_NAME = {"klamm.__main__", "klamm.cli.main", "klamm.testing.plugin", "simulation.__main__"}
"""Modules that nothing imports: entry points."""


def _show(places: list[str]) -> str:
    return "\n".join(places[:20])


@pytest.mark.parametrize("word", NAMES)
def test_variables_are_nouns(word):
    places = [f"{source.name}:{line}" for source in PRODUCT for name, line in source.names.bound if name == word]
    assert len(places) <= NAMES[word], f"{len(places)} variables named {word}; name the noun:\n{_show(places)}"


def test_parameters_are_nouns():
    places = [f"{source.name}:{line}" for source in FILES for name, line in source.names.parameters if name in NAMES]
    assert len(places) <= PARAMETERS_LEFT, f"{len(places)} parameters; name the noun:\n{_show(places)}"


def test_functions_are_verbs():
    places = [
        f"{source.name}: {name}" for source in PRODUCT + _outside() for name in FUNCTIONS_DIALECT.findall(source.text)
    ]
    assert len(places) <= FUNCTIONS_LEFT, f"{len(places)} functions:\n{_show(places)}"


def test_functions_are_not_named_by_their_result():
    places = [
        f"{source.name}:{line}: {name}"
        for source in FILES
        if not source.is_kernel  # changing one means compiling it again
        for name, line in source.names.participles
        if name not in VERBS
    ]
    assert places == [], f"name the verb:\n{_show(places)}"


def test_text_speaks_of_programs_and_not_of_persons():
    places = [line for source in FILES for line in person_lines(source.path)]
    assert len(places) <= PERSONS_LEFT, f"{len(places)} lines:\n{_show(places)}"


@cache
def _outside() -> list[Source]:
    """The Python files beside the product, except those that hold the word list."""
    return [source for source in sources(*OUTSIDE) if not source.name.startswith("tests/tidy/")]


def _folder(source: Source) -> str:
    parts = source.path.relative_to(ROOT).parts
    return "/".join(parts[: 2 if parts[0] == "tests" else 1])


def _over_ceilings(places: dict[str, list[str]], ceilings: dict[str, int]) -> list[str]:
    return [
        f"{folder}: {len(lines)}, not {ceilings.get(folder, 0)}:\n{_show(lines)}"
        for folder, lines in sorted(places.items())
        if len(lines) > ceilings.get(folder, 0)
    ]


def test_variables_outside_the_product_are_nouns():
    word = "|".join(NAMES)
    # Near a keyword, a comma or an equals sign: the other files have it in texts only, and parsing is the slow part.
    candidate = re.compile(rf"\b(for|lambda|as)\b[^:\n]*\b({word})\b|\b({word})\b *[:=+,)]|[,(*] *({word})\b")
    places = defaultdict(list)
    for source in _outside():
        if candidate.search(source.text):
            bound = source.names.bound + source.names.parameters
            places[_folder(source)] += [f"{source.name}:{line}" for name, line in bound if name in NAMES]
    assert _over_ceilings(places, NOUNS_LEFT) == []


def test_text_outside_the_product_speaks_of_programs():
    places = defaultdict(list)
    for source in _outside():
        places[_folder(source)] += person_lines(source.path)
    assert _over_ceilings(places, PERSON_LINES_LEFT) == []


def test_pages_speak_of_programs():
    pages = sorted({path for pattern in PAGES for path in ROOT.glob(pattern)})
    assert ROOT / "docs" / "guides" / "cluster.md" in pages
    assert [line for path in pages for line in person_lines(path)] == []


def test_functions_have_names():
    count = sum(source.names.lambdas for source in PRODUCT)
    assert 1000 * count / LINES <= LAMBDAS_PER_1000_LINES, f"{count} lambdas in {LINES} lines"


def test_reasons_stand_at_the_line_that_needs_them():
    count = sum(source.comments for source in PRODUCT)
    assert 1000 * count / LINES >= COMMENTS_PER_1000_LINES, f"{count} comments in {LINES} lines"


def test_files_are_short():
    long = [f"{source.name}: {source.lines} lines" for source in FILES if source.lines > LINES_MAX]
    assert [line for line in long if "kernels" not in line] == []


def test_a_class_or_type_alias_has_one_meaning():
    repeated = repeated_classes(FILES)
    places = [f"{name}: {', '.join(repeated[name])}" for name in sorted(repeated.keys() - REPEATED_NAMES)]
    assert places == [], f"{len(places)} names are used twice:\n{_show(places)}"


def test_the_list_of_repeated_names_shrinks():
    assert sorted(REPEATED_NAMES - repeated_classes(FILES).keys()) == [], "have one meaning now: take them off the list"


def test_every_level_of_the_server_can_be_taken_in_at_a_glance():
    crowded = []
    for folder in [PACKAGE / "server", *(path for path in (PACKAGE / "server").rglob("*") if path.is_dir())]:
        entries = [path for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
        if len(entries) > ENTRIES_MAX:
            crowded.append(f"{folder.relative_to(ROOT)}: {len(entries)} entries")
    assert crowded == []


def test_file_names_are_words_of_the_field():
    assert [source.name for source in FILES if source.path.stem in MODULES_DIALECT] == []


def _module(source: Source) -> str:
    parts = list(source.path.relative_to(ROOT).with_suffix("").parts)
    parts = parts[1:] if parts[0] == "src" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_module_is_used():
    """By an import of another module, or by its name in a table of lazy imports (handlers, commands, public names)."""
    named = set(imported_modules(FILES))
    families = {api.family for api in BY_NAME.values()}  # messages and handlers are imported by the name of their API
    tables = {text for source in FILES for text in source.names.strings if text.isidentifier()}
    dead = [
        source.name
        for source in FILES
        if source.path.stem != "__init__"
        and source.path.stem.removesuffix("_quick") not in families
        and _module(source) not in named | STARTED_BY_NAME
        and source.path.stem not in tables
        and '__name__ == "__main__"' not in source.text
    ]
    assert dead == []


def test_every_handler_has_the_test_that_contributing_promises():
    """A file of its name, or its name in the test of a family."""
    promise = re.search(r"- The test of a handler is .*?(?=\n- )", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert promise is not None
    folder = ROOT / "tests" / "server"
    families = [folder / f"{name}.py" for name in re.findall(r"`(test_[a-z_]+)`", promise[0])]
    tested = "".join(path.read_text(encoding="utf-8") for path in families)
    untested = [
        path.stem
        for path in sorted((PACKAGE / "server" / "handlers").glob("*/*.py"))
        if path.stem in {api.family for api in BY_NAME.values()}
        and not (folder / f"test_{path.stem}.py").exists()
        and path.stem not in tested
        and f"{path.stem.title().replace('_', '')}Request" not in tested
    ]
    assert untested == []


def _definitions(path: Path) -> set[str]:
    """Functions, classes and methods of a file, by dotted name."""
    defined = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            defined.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
            defined |= {f"{node.name}.{method.name}" for method in methods}
    return defined


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/glossary.md", "CONTRIBUTING.md"])
def test_paths_and_functions_of_the_map_exist(page):
    """`storage/log.py`, `replication/manager.ReplicaManager.write_staged`, `coordinator/groups/classic/`."""
    missing = []
    for path, name in re.findall(r"`((?:[a-z_]+/)+[a-z_]*)(?:\.((?:py|[A-Za-z_.]+)))?`", (ROOT / page).read_text()):
        bases = [base / path for base in (PACKAGE, ROOT)]
        if path.endswith("/"):
            known = any(base.is_dir() for base in bases)
        else:
            homes = [base.with_suffix(".py") for base in bases if base.with_suffix(".py").exists()]
            known = bool(homes) and (name in ("", "py") or name in _definitions(homes[0]))
            known = known or any((base if not name else base.with_suffix(f".{name}")).exists() for base in bases)
        if not known:
            missing.append(f"{path}.{name}" if name else path)
    assert missing == []


def test_decisions_are_numbered_without_gaps():
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
