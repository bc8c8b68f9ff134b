"""JSON Schema documents: drafts, base addresses, and what a `$ref` points to. Nothing is ever fetched."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

DRAFTS = {
    "http://json-schema.org/draft-04/schema": 4,
    "http://json-schema.org/draft-06/schema": 6,
    "http://json-schema.org/draft-07/schema": 7,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
_DRAFT_DEFAULT = 7
# What stands there is data, not a schema.
_DATA = {"enum", "const", "default", "examples"}
_REFERENCES = ("$ref", "$recursiveRef", "$dynamicRef")
_HAS_REFERENCE = re.compile(r'"\$(?:ref|recursiveRef|dynamicRef)":')


def find_draft(root: Any) -> int:
    """Return the draft that `$schema` names; draft 7 if there is none, or one that is not known."""
    name = root.get("$schema") if isinstance(root, dict) else None
    if not isinstance(name, str):
        return _DRAFT_DEFAULT
    return DRAFTS.get(re.sub(r"^https?:", "https:" if "/draft/" in name else "http:", name).rstrip("#"), _DRAFT_DEFAULT)


class JsonNode:
    """A schema inside a document; two uses of one schema are one node."""

    __slots__ = ("_text", "base", "document", "facts", "value")

    def __init__(self, document: JsonDocument, value: Any, base: str) -> None:
        self.document = document
        self.value = value
        self.base = base
        self.facts: Any = None
        """What the rules compare, computed when it is first needed."""
        self._text: str | None = None

    @property
    def text(self) -> str:
        """The schema with sorted keys: equal texts are equal schemas, up to their references."""
        if self._text is None:
            self._text = json.dumps(self.value, sort_keys=True)
        return self._text

    def equals(self, other: JsonNode) -> bool:
        """Whether two nodes are the same schema for certain."""
        if self.document.draft != other.document.draft or self.text != other.text:
            return False
        if not _HAS_REFERENCE.search(self.text):
            return True
        return self.base == other.base and self.document.fingerprint == other.document.fingerprint

    def part(self, value: Any) -> JsonNode:
        """Return the node of a schema inside this one."""
        return self.document.node(value, self.base)

    def references(self) -> Iterator[tuple[str, JsonNode | None]]:
        """Return what `$ref` and its relatives name, with the target or None if there is none."""
        # $dynamicRef and $recursiveRef are taken as written; a document that is extended elsewhere may mean another.
        for keyword in _REFERENCES:
            reference = self.value.get(keyword)
            if isinstance(reference, str):
                yield urljoin(self.base, reference), self.document.resolve(reference, self.base)


class JsonDocument:
    """A schema text with its anchors and the documents that it may refer to."""

    def __init__(self, root: Any, references: Mapping[str, JsonDocument]) -> None:
        self.root = root
        self.draft = find_draft(root)
        self._nodes: dict[int, JsonNode] = {}
        self._flags: dict[bool, JsonNode] = {}
        self._bases: dict[int, str] = {}
        # Schemas by address, and by address and anchor.
        self._resources: dict[str, Any] = {"": root}
        self._index()
        self.base = self._bases.get(id(root), "")
        self._resources[self.base] = root
        self._documents = dict(references)
        for name, document in references.items():
            self._documents.setdefault(urljoin(self.base, name), document)
            self._documents.setdefault(document.base, document)
        # A document without an address must not take the place of this one.
        self._documents.pop("", None)
        content = json.dumps([root, [(name, references[name].fingerprint) for name in sorted(references)]])
        self.fingerprint: str = hashlib.sha256(content.encode()).hexdigest()

    @property
    def root_node(self) -> JsonNode:
        """The whole schema."""
        return self.node(self.root, "")

    def node(self, value: Any, base: str) -> JsonNode:
        """Return the node of a schema of this document."""
        if isinstance(value, bool):
            return self._flags.setdefault(value, JsonNode(self, value, base))
        node = self._nodes.get(id(value))
        if node is None:
            node = self._nodes[id(value)] = JsonNode(self, value, self._bases.get(id(value), base))
        return node

    def resolve(self, reference: str, base: str) -> JsonNode | None:
        """Return the node that a reference points to; None if it is in no known document."""
        address, _, fragment = reference.partition("#")
        target = urljoin(base, address) if address else base
        if target in self._resources:
            return self._resolve_fragment(target, unquote(fragment))
        document = self._documents.get(target) or self._documents.get(address)
        return None if document is None else document._resolve_fragment(document.base, unquote(fragment))  # noqa: SLF001

    def find_document(self, address: str) -> JsonDocument | None:
        """Return the referenced document of an address."""
        return self._documents.get(address)

    def _resolve_fragment(self, address: str, fragment: str) -> JsonNode | None:
        if fragment and not fragment.startswith("/"):
            value = self._resources.get(f"{address}#{fragment}")
            return None if value is None else self.node(value, address)
        value = self._resources[address]
        base = address
        for part in fragment.split("/")[1:]:
            # ~1 before ~0 (RFC 6901): otherwise ~01 would become a slash.
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
            base = self._bases.get(id(value), base)
        return self.node(value, base) if isinstance(value, (dict, bool)) else None

    def _index(self) -> None:
        identifier = "id" if self.draft == 4 else "$id"
        level: list[tuple[Any, str]] = [(self.root, "")]
        while level:
            value, base = level.pop()
            if isinstance(value, list):
                level += [(item, base) for item in value if isinstance(item, (dict, list))]
                continue
            if not isinstance(value, dict):
                continue
            name = value.get(identifier)
            # Up to draft 7, what stands beside $ref is ignored.
            if isinstance(name, str) and not ("$ref" in value and self.draft <= 7):
                if name.startswith("#"):
                    self._resources[f"{base}{name}"] = value
                else:
                    base = urljoin(base, name).rstrip("#")
                    self._resources.setdefault(base, value)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(value.get(keyword), str):
                    self._resources[f"{base}#{value[keyword]}"] = value
            self._bases[id(value)] = base
            level += [
                (item, base) for key, item in value.items() if key not in _DATA and isinstance(item, (dict, list))
            ]
