"""A file of users and permissions, in the format of Karapace's `registry_authfile`.

    {"users": [{"username": "ada", "algorithm": "scrypt", "salt": "...", "password_hash": "..."}],
     "permissions": [{"username": "ada", "operation": "Write", "resource": "Subject:orders-.*"}]}

A permission is for the resources whose name its regular expression matches from the start; Write includes Read.
Passwords are stored as hashes: scrypt, or PBKDF2 with sha1, sha256 or sha512.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from klamm.model.errors import ConfigError
from klamm.security.core.secret import Secret

SCRYPT: Final = "scrypt"
READ: Final = "Read"
WRITE: Final = "Write"
_PBKDF2: Final = ("sha1", "sha256", "sha512")
_PBKDF2_ITERATIONS: Final = 5000
"""Karapace's; scrypt is the one to choose for new users."""


@dataclass(frozen=True, slots=True)
class FileUser:
    """A user and the hash of the password."""

    name: str
    algorithm: str
    salt: str
    password_hash: Secret

    def verify(self, password: str) -> bool:
        """Whether it is the password; takes tens of milliseconds by design."""
        return self.password_hash.equals(hash_password(self.algorithm, self.salt, password))


@dataclass(frozen=True, slots=True)
class Permission:
    """Lets a user read, or read and write, some resources."""

    user: str
    operation: str
    resource: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class AuthFile:
    """The contents of one file."""

    users: Mapping[str, FileUser] = field(default_factory=dict)
    permissions: tuple[Permission, ...] = ()

    def allows(self, user: str, operation: str, resource: str) -> bool:
        """Whether a permission of the user is for the operation on the resource."""
        return any(
            permission.user == user
            and (operation == READ or permission.operation == WRITE)
            and permission.resource.match(resource) is not None
            for permission in self.permissions
        )


def hash_password(algorithm: str, salt: str, password: str) -> str:
    """Return the base64 text of a hash, as Karapace's mkpasswd prints it."""
    if algorithm == SCRYPT:
        digest = hashlib.scrypt(password.encode(), salt=salt.encode(), n=16384, r=8, p=1)
    else:
        digest = hashlib.pbkdf2_hmac(algorithm, password.encode(), salt.encode(), _PBKDF2_ITERATIONS)
    return base64.b64encode(digest).decode()


def format_user(name: str, password: str, salt: str) -> dict[str, str]:
    """Return the JSON of a user, with a scrypt hash."""
    password_hash = hash_password(SCRYPT, salt, password)
    return {"username": name, "algorithm": SCRYPT, "salt": salt, "password_hash": password_hash}


def parse_auth_file(text: str, source: str) -> AuthFile:
    """Parse a file; ConfigError names what is wrong, and never prints a hash."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source} is not a JSON object")
    users = (_parse_user(entry, source) for entry in _list(document, "users", source))
    permissions = (_parse_permission(entry, source) for entry in _list(document, "permissions", source))
    return AuthFile({user.name: user for user in users}, tuple(permissions))


def _parse_user(entry: Mapping[str, Any], source: str) -> FileUser:
    name, algorithm, salt, password_hash = (
        _text(entry, name, source) for name in ("username", "algorithm", "salt", "password_hash")
    )
    if algorithm not in (SCRYPT, *_PBKDF2):
        known = ", ".join((SCRYPT, *_PBKDF2))
        raise ConfigError(f"{source}: user {name} has the algorithm {algorithm}; known ones are {known}")
    if ":" in name:
        # RFC 7617, 2: the first colon ends the name.
        raise ConfigError(f"{source}: the name of user {name} has a colon, which basic authentication cannot carry")
    return FileUser(name, algorithm, salt, Secret(password_hash))


def _parse_permission(entry: Mapping[str, Any], source: str) -> Permission:
    user, operation, resource = (_text(entry, name, source) for name in ("username", "operation", "resource"))
    if operation not in (READ, WRITE):
        raise ConfigError(f"{source}: a permission of {user} has the operation {operation}; write {READ} or {WRITE}")
    try:
        pattern = re.compile(resource)
    except re.error as error:
        raise ConfigError(f"{source}: the resource {resource} of {user} is no regular expression: {error}") from None
    return Permission(user, operation, pattern)


def _list(document: Mapping[str, Any], name: str, source: str) -> list[Mapping[str, Any]]:
    entries = document.get(name, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"{source}: {name} is not a list of objects")
    return entries


def _text(entry: Mapping[str, Any], name: str, source: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{source}: an entry has no {name}")
    return value


def fingerprint(key: bytes, user: str, password: str) -> bytes:
    """Return what a verified password is remembered by; useless without the key, which is of this process."""
    return hmac.digest(key, f"{user}:{password}".encode(), "sha256")
