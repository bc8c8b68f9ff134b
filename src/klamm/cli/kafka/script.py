"""What the scripts share: help and version, error messages and exit codes, the connection to the cluster."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from klamm.cli.command_errors import error_detail
from klamm.cli.kafka.options import VERSION, Flags, Parsed, Usage, java_integer
from klamm.model.errors import ConfigError, ErrorCode, KlammError, ProtocolError

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

TIMEOUT_S: Final = 60.0
"""default.api.timeout.ms of Java's admin client."""
_HTTP: Final = int.from_bytes(b"HTTP", "big")
_TLS: Final = frozenset({0x1503, 0x1603})
"""An alert, or a handshake, of TLS."""
_SIZE: Final = re.compile(r"(\S+) broke: a frame of (-?\d+) bytes")
ADDRESSES: Final = ("bootstrap-server", "bootstrap-controller", "broker-list")
_JAVA_NAMES: Final = {
    "TOPIC_ALREADY_EXISTS": "TopicExists",
    "INVALID_CONFIG": "InvalidConfiguration",
    "INVALID_TOPIC_EXCEPTION": "InvalidTopic",
    "NON_EMPTY_GROUP": "GroupNotEmpty",
    "REQUEST_TIMED_OUT": "Timeout",
    "MESSAGE_TOO_LARGE": "RecordTooLarge",
    "INVALID_TXN_STATE": "InvalidTxnState",
    "UNKNOWN_SERVER_ERROR": "UnknownServer",
    "INVALID_GROUP_ID": "InvalidGroupId",
    "CORRUPT_MESSAGE": "CorruptRecord",
    "NETWORK_EXCEPTION": "Network",
    "DELEGATION_TOKEN_AUTH_DISABLED": "DelegationTokenDisabled",
    "DELEGATION_TOKEN_AUTHORIZATION_FAILED": "DelegationTokenAuthorization",
    "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED": "UnsupportedByAuthentication",
}


class ToolFailed(Exception):
    """A script ends with exit code 1 and a sentence on standard error (or output)."""

    def __init__(self, message: str, *, out: bool = False) -> None:
        super().__init__(message)
        self.out = out


def run(main: Callable[[list[str]], int], args: list[str]) -> int:
    """Run a script; every expected error ends with a sentence and 1, never with a traceback."""
    try:
        return main(args)
    except ToolFailed as failed:
        print(failed, file=sys.stdout if failed.out else sys.stderr)
        return 1
    except Usage as usage:
        print(usage, file=sys.stderr)
        return 1
    except KlammError as error:
        print(f"Error: {peer_words(str(error)) or java_error(error)}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except ProtocolError as error:
        words = peer_words(str(error)) or f"{error}; is it a broker of Kafka's protocol that listens there?"
        print(f"Error: {words}", file=sys.stderr)
        return 1
    except UnicodeDecodeError as error:
        print(f"Error: a file or argument is not UTF-8: {error.reason}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # 128 + SIGINT, as the JVM exits.
        return 130
    # Before OSError, which it is: `klamm.cli.main` ends it without an error.
    except BrokenPipeError:
        raise
    except OSError as error:
        from klamm.cli.command_errors import explain

        print(f"klamm: {explain(error)}", file=sys.stderr)
        return 1


def peer_words(message: str) -> str | None:
    """The protocol of a peer that is no broker, judged by the first four bytes of its response."""
    size = _SIZE.search(message)
    if size is None:
        return None
    where, length = size.group(1), int(size.group(2)) & 0xFFFFFFFF
    if length == _HTTP:
        return f"{where} answers in HTTP, not in Kafka's protocol; check the port of the address"
    if length >> 16 in _TLS:
        return (
            f"{where} answers in TLS; write security.protocol=SSL or, with a login, SASL_SSL into a file and give it"
            " with --command-config"
        )
    return None


def read_flags(flags: Flags, args: list[str], *, empty_is_help: bool = False) -> Parsed | None:
    """The parsed flags; None when help or the version was printed."""
    # Some JVM tools print their help and exit 1 without arguments.
    if not args and empty_is_help:
        print(flags.usage(), file=sys.stderr)
        raise SystemExit(1)
    parsed = flags.parse(args)
    if parsed.has("help"):
        print(flags.usage())
        return None
    if parsed.has("version"):
        print(VERSION)
        return None
    return parsed


def run_check(flags: Flags, check: Callable[[], None]) -> None:
    """Run a check of the command line; its error is followed by the list of flags."""
    try:
        check()
    except Usage as usage:
        raise ToolFailed(f"{usage}\n{flags.usage()}" if usage.flags else str(usage)) from None


def settings(parsed: Parsed, role: str, *files: str, pairs: tuple[str, ...] = ()) -> dict[str, str]:
    """The settings of `--command-config FILE` and `--command-property key=value` that a client of that role has."""
    from klamm.cli.client_settings import from_java, read_properties
    from klamm.cli.foreign_protocols import remember_protocol

    properties: dict[str, str] = {}
    for name in (*files, "command-config"):
        file = parsed.get(name) if parsed.has(name) else None
        if file:
            properties.update(read_properties(file))
    # Properties on the command line win over the file.
    properties.update(parsed.pairs(*pairs))
    remember_protocol(properties.get("security.protocol", ""))
    return from_java(role, properties)


def connect(parsed: Parsed, *files: str, pairs: tuple[str, ...] = ()) -> BlockingCluster:
    """The cluster of a script's address flags, with the settings of --command-config and of `pairs`."""
    from klamm.client.blocking_cluster import BlockingCluster

    own = settings(parsed, "admin", *files, pairs=pairs)
    if parsed.has("bootstrap-controller") and not parsed.has("bootstrap-server"):
        from klamm.client.controller_cluster import ControllerCluster

        return ControllerCluster(parsed.text("bootstrap-controller"), TIMEOUT_S, own)
    address = next((parsed.text(name) for name in ADDRESSES if parsed.has(name)), "")
    return BlockingCluster(address, TIMEOUT_S, own)


def integers(text: str, before: str = "") -> list[int]:
    """Comma-separated numbers; ToolFailed with Java's message, after `before`, for anything else."""
    numbers = []
    for word in text.split(","):
        number = java_integer(word)
        if number is None:
            raise ToolFailed(f'{before}For input string: "{word}"')
        numbers.append(number)
    return numbers


def java_name(code: ErrorCode) -> str:
    """The name of Kafka's exception for an error code."""
    # Most of Kafka's exceptions are the name of the error in camel case; the others are in the table.
    plain = _JAVA_NAMES.get(code.name) or "".join(word.capitalize() for word in code.name.split("_"))
    return f"org.apache.kafka.common.errors.{plain}Exception"


def java_error(error: KlammError, message: str | None = None) -> str:
    """An error as Kafka's tools print it."""
    return f"{java_name(error.code)}: {message or error_detail(error)}"


def error_text(code: ErrorCode, message: str | None = None) -> str:
    """As `java_error`, for a code of an answer."""
    return f"{java_name(code)}: {message or code.text}"


def columns(heads: list[str], rows: list[list[str]]) -> str:
    """Columns parted by tabs, as wide as they need be: the way of kafka-transactions and kafka-metadata-quorum."""
    # Every cell is padded and followed by a tab, also the last: the output of ToolsUtils.prettyPrintTable.
    widths = [max(len(head), *(len(row[i]) for row in rows)) if rows else len(head) for i, head in enumerate(heads)]
    return "\n".join(
        "".join(f"{cell:<{width}}\t" for cell, width in zip(row, widths, strict=True)) for row in (heads, *rows)
    )
