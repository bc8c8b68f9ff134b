"""Names of a Protobuf file and of what it imports, and what a name means at a place."""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MESSAGE, ENUM, EXTENSION, PACKAGE, OTHER = "message", "enum", "extension", "package", "other"
_CONTAINERS = (MESSAGE, ENUM, PACKAGE)
_WORD = string.ascii_letters + string.digits + "_"


@dataclass(frozen=True, slots=True)
class Symbol:
    """What a full name stands for."""

    kind: str
    full_name: str
    descriptor: Any = None


def reduce_names(text: str) -> str:
    """Return the text of a file with the last part of every name: types may be named from any scope around them."""
    *before, last = text.split(".")
    return "".join(part.rstrip(_WORD) for part in before) + last


class SymbolTable:
    """Full names of the files that a file sees."""

    def __init__(self, files: Iterable[Any]) -> None:
        self._symbols: dict[str, Symbol] = {}
        for file in files:
            parts = file.package.split(".") if file.package else []
            for count in range(1, len(parts) + 1):
                package = ".".join(parts[:count])
                self._symbols.setdefault(package, Symbol(PACKAGE, package))
            self._add_types(file.package, file.message_type, file.enum_type, file.extension)
            for service in file.service:
                self._add(OTHER, join(file.package, service.name), service)

    def _add(self, kind: str, full_name: str, descriptor: Any) -> None:
        self._symbols.setdefault(full_name, Symbol(kind, full_name, descriptor))

    def _add_types(self, scope: str, messages: Any, enums: Any, extensions: Any) -> None:
        for enum in enums:
            self._add(ENUM, join(scope, enum.name), enum)
            for value in enum.value:  # constants are siblings of their enum
                self._add(OTHER, join(scope, value.name), value)
        for extension in extensions:
            self._add(EXTENSION, join(scope, extension.name), extension)
        for message in messages:
            full_name = join(scope, message.name)
            self._add(MESSAGE, full_name, message)
            for member in [*message.field, *message.oneof_decl]:
                self._add(OTHER, join(full_name, member.name), member)
            self._add_types(full_name, message.nested_type, message.enum_type, message.extension)

    def find(self, name: str, scope: str, kinds: tuple[str, ...]) -> Symbol | None:
        """Return what a name means inside of a scope: the innermost scope that has its first part decides."""
        if name.startswith("."):
            symbol = self._symbols.get(name[1:])
            return symbol if symbol is not None and symbol.kind in kinds else None
        first, _, rest = name.partition(".")
        while True:
            symbol = self._symbols.get(join(scope, first))
            if symbol is not None and rest and symbol.kind in _CONTAINERS:
                symbol = self._symbols.get(join(scope, name))
                return symbol if symbol is not None and symbol.kind in kinds else None
            if symbol is not None and not rest and symbol.kind in kinds:
                return symbol
            if not scope:
                return None
            scope = scope.rpartition(".")[0]


def join(scope: str, name: str) -> str:
    """Return the full name of a name in a scope."""
    return f"{scope}.{name}" if scope else name
