"""Error messages of commands: one sentence and what to try next, never a traceback."""

from __future__ import annotations

import errno
import functools
import re
from collections.abc import Callable
from typing import IO, Any, Final, ParamSpec, TypeVar

import click

from klamm.cli import exit_codes
from klamm.cli.foreign_protocols import not_kafka
from klamm.model.errors import ConfigError, ErrorCode, KlammError, ProtocolError

P = ParamSpec("P")
R = TypeVar("R")

NEXT: Final = {
    "UNKNOWN_TOPIC_OR_PARTITION": "`klamm topic ls` lists the topics there are",
    "UNKNOWN_TOPIC_ID": "`klamm topic ls` lists the topics there are",
    "GROUP_ID_NOT_FOUND": "`klamm group ls` lists the groups there are",
    "TRANSACTIONAL_ID_NOT_FOUND": "`klamm txn ls` lists the ids in use",
    "NON_EMPTY_GROUP": "stop its members first; `klamm group show GROUP` names them",
    "TOPIC_ALREADY_EXISTS": "`klamm topic show TOPIC` shows it, `klamm topic alter TOPIC` changes it",
    "INVALID_PARTITIONS": "partitions can only become more; `klamm topic show TOPIC` counts them",
    "INVALID_REPLICATION_FACTOR": "`klamm cluster show` counts the brokers there are",
    "INVALID_CONFIG": "`klamm config ls topic TOPIC --all` lists the settings there are",
    "INVALID_REGULAR_EXPRESSION": "quote the expression, and escape what shall stand for itself",
    "MESSAGE_TOO_LARGE": "raise max.message.bytes: `klamm topic alter TOPIC -c max.message.bytes=10MiB`",
    "NOT_ENOUGH_REPLICAS": "`klamm topic show TOPIC` shows which replicas are in sync",
    "LEADER_NOT_AVAILABLE": "`klamm cluster show` lists the brokers that are alive",
    "COORDINATOR_NOT_AVAILABLE": "`klamm cluster show` lists the brokers that are alive",
    "BROKER_NOT_AVAILABLE": "`klamm cluster show` lists the brokers that are alive",
    "REQUEST_TIMED_OUT": "`klamm doctor` looks for the reason",
    "NETWORK_EXCEPTION": "`klamm doctor` looks for the reason",
    "UNSUPPORTED_VERSION": "`klamm doctor` shows which APIs the broker serves",
    "TOPIC_AUTHORIZATION_FAILED": "ask for an ACL on the topic, or use another context: `klamm ctx ls`",
    "GROUP_AUTHORIZATION_FAILED": "ask for an ACL on the group, or use another context: `klamm ctx ls`",
    "CLUSTER_AUTHORIZATION_FAILED": "ask for an ACL on the cluster, or use another context: `klamm ctx ls`",
    "SASL_AUTHENTICATION_FAILED": "check user and password: `klamm ctx show`",
    "OFFSET_OUT_OF_RANGE": "`klamm topic show TOPIC` shows the offsets each partition holds",
    "PRODUCER_FENCED": "another producer has taken over its transactional id; `klamm txn show ID` shows it",
    "TOPIC_DELETION_DISABLED": "delete.topic.enable=true on the brokers allows it",
}
"""What to try next, by the name of the error."""


_HEADROOM_BYTES: Final = 1 << 16
"""The part of a request that is not the record; generous, since headers and topic names vary."""


_REFUSED_TLS: Final = re.compile(r"do not agree on TLS|certificate verify failed", re.IGNORECASE)


class CommandRefusal(click.ClickException):
    """One sentence on standard error and an exit code."""

    def __init__(self, message: str, *, code: int = exit_codes.REFUSED) -> None:
        super().__init__(message)
        self.exit_code = code  # type: ignore[misc]  # click has one per class, we one per refusal

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence."""
        click.echo(f"klamm: {self.format_message()}", file=file, err=file is None)


def broker_refusal(code: ErrorCode, message: str | None = None) -> CommandRefusal:
    """The refusal for a broker's error: its name first, then what it means here, then what to try."""
    sentence = message or code.text
    if code.name not in sentence:
        sentence = f"{code.name}: {sentence}"
    advice = NEXT.get(code.name)
    if "max.request.size=" in sentence:  # it never left this client: the topic's limit is not the one
        advice = _larger_request(sentence)
    # The sentence may contain advice already; two pieces of advice contradict each other too often.
    if advice and not any(word in sentence for word in ("`klamm ", "first", "did you mean")):
        sentence = f"{sentence} {advice}" if sentence.endswith("?") else f"{sentence.rstrip('.')}; {advice}"
    return CommandRefusal(sentence, code=exit_codes.exit_code(code))


def error_detail(error: KlammError) -> str:
    """The sentence of an error without its name: the broker's own where it sent one."""
    return getattr(error, "detail", None) or error.message or error.code.text


def _larger_request(message: str) -> str:
    sizes = re.search(r"of (\d+) bytes", message)
    return f"raise it with -X max.request.size={int(sizes[1]) + _HEADROOM_BYTES}" if sizes else "raise it with -X"


def refuses(command: Callable[P, R]) -> Callable[P, R]:
    """Turn expected errors into a CommandRefusal; bugs keep their traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except KlammError as error:
            # The producer and the consumer report a foreign protocol as a broken connection.
            if error.code is ErrorCode.NETWORK_EXCEPTION and (message := not_kafka(error.message or "")):
                raise CommandRefusal(message, code=exit_codes.NO_ANSWER) from None
            raise broker_refusal(error.code, error_detail(error)) from None
        except ConfigError as error:
            raise CommandRefusal(str(error)) from None
        # Bytes that are no response of a broker: usually the wrong port.
        except ProtocolError as error:
            message = not_kafka(str(error))
            raise CommandRefusal(
                message or str(error), code=exit_codes.NO_ANSWER if message else exit_codes.REFUSED
            ) from None
        except BrokenPipeError:
            raise  # the reader of our output has left; `klamm.cli.main` ends quietly
        except TimeoutError as error:
            raise CommandRefusal(
                f"{error or 'no answer in time'}; `klamm doctor` looks closer", code=exit_codes.NO_ANSWER
            ) from None
        except OSError as error:
            raise CommandRefusal(explain(error), code=_os_exit_code(error)) from None

    return wrapped


def reader_left() -> click.exceptions.Exit:
    """The exit for a closed output pipe (`klamm consume t | head`): no error, and nothing more can be written."""
    import os
    import sys

    # The interpreter flushes standard output at exit, and a second EPIPE would print a traceback.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return click.exceptions.Exit(exit_codes.OK)


def _os_exit_code(error: OSError) -> int:
    # By name: importing the client here would cost every command that fails for another reason.
    unreachable = type(error).__name__ == "ClusterUnreachable" or isinstance(error, ConnectionError)
    return exit_codes.NO_ANSWER if unreachable else exit_codes.REFUSED


def explain(error: OSError) -> str:
    """The message of an OSError; its own sentence when it has no errno."""
    if type(error).__name__ == "ClusterUnreachable" and "`klamm" not in str(error):
        if message := not_kafka(str(error)):
            return message
        # A node did answer; its certificate, or this client's, was refused.
        if _REFUSED_TLS.search(str(error)):
            return str(error)
        return f"{error}; is a node running there? `klamm doctor` looks closer"
    if error.errno is None:
        return str(error)
    reason = error.strerror or errno.errorcode.get(error.errno, str(error.errno))
    if error.filename is None:
        # Stands in the middle of a sentence, after "klamm: ".
        return reason[0].lower() + reason[1:]
    return f"{error.filename}: {reason[0].lower() + reason[1:]}"
