"""Protobuf files as a registry has them: texts or descriptors in base64, with others that they import by path."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from klamm.registry.schemas.parsed import InvalidSchemaError
from klamm.registry.schemas.protobuf.linker import LinkedFile, link
from klamm.registry.schemas.protobuf.parser import parse_proto

# A schema in a registry has no file name; imports name only its references.
MAIN_NAME = "default"

_BASE64 = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


def decode_descriptor(text: str) -> Any:
    """Return the file of a base64 text; None if it is .proto text."""
    if not text.strip():
        raise InvalidSchemaError("the schema is empty")
    # Every .proto text that declares something has a semicolon or a brace.
    if not _BASE64.fullmatch(text):
        return None
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidSchemaError("neither .proto text nor a FileDescriptorProto in base64") from None
    file.ClearField("source_code_info")
    _check_texts(file)
    return file


def _check_texts(message: Any) -> None:
    """Refuse names that are no UTF-8: the library returns them as bytes."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            # A map is iterated by its keys; of its values the options of a file have texts only.
            if not all(isinstance(text, str) for entry in value.items() for text in entry):
                raise InvalidSchemaError(f"{field.name} of the descriptor is no UTF-8")
        elif field.message_type is not None:
            for part in values:
                _check_texts(part)
        elif field.type == field.TYPE_STRING and not all(isinstance(text, str) for text in values):
            raise InvalidSchemaError(f"{field.name} of the descriptor is no UTF-8")


def link_texts(text: str, imports: Mapping[str, str]) -> LinkedFile:
    """Return a file with what it imports, directly or not, from texts by path."""
    return _TextLinker(imports).link(MAIN_NAME, text)


class _TextLinker:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._linked: dict[str, LinkedFile] = {}
        self._active: set[str] = set()

    def link(self, path: str, text: str) -> LinkedFile:
        parsed = decode_descriptor(text) or parse_proto(text)
        self._active.add(path)
        for dependency in parsed.dependency:
            if dependency in self._active:
                raise InvalidSchemaError(f"import {dependency} leads back to itself")
            if dependency in self._texts and dependency not in self._linked:
                self._linked[dependency] = self.link(dependency, self._texts[dependency])
        self._active.remove(path)
        return link(parsed, path, self._linked)
