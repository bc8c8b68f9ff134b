"""kafka-delegation-tokens: create, renew, expire and describe delegation tokens."""

from __future__ import annotations

import base64
import binascii
import functools
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, one_action
from klamm.cli.kafka.script import ToolFailed, connect, java_error, read_flags, run_check
from klamm.model.errors import KlammError
from klamm.security.core.principal import parse_principal

if TYPE_CHECKING:
    from klamm.client.admin.acl_types import DelegationToken
    from klamm.client.blocking_cluster import BlockingCluster

FLAGS: Final = Flags(
    "kafka-delegation-tokens",
    BOOTSTRAP,
    COMMAND_CONFIG,
    Flag("create", "Create a token."),
    Flag("renew", "Renew a token."),
    Flag("expire", "Let a token end sooner."),
    Flag("describe", "Describe tokens: those of --owner-principal, or all that the user may see."),
    Flag("owner-principal", "An owner, as User:name.", "principal", optional=True),
    Flag("renewer-principal", "A renewer, as User:name.", "principal", optional=True),
    Flag(
        "max-life-time-period", "With --create: the longest lifetime in ms; -1 for the broker's.", "ms", optional=True
    ),
    Flag("renew-time-period", "With --renew: a period in ms; -1 for the broker's.", "ms", optional=True),
    Flag("expiry-time-period", "With --expire: a period in ms; -1 to end it at once.", "ms", optional=True),
    Flag("hmac", "The HMAC of a token in base64.", "hmac", optional=True),
)
_ACTIONS: Final = ("create", "renew", "expire", "describe")
_REQUIRED: Final = {
    "create": ("max-life-time-period",),
    "renew": ("hmac", "renew-time-period"),
    "expire": ("hmac", "expiry-time-period"),
    "describe": (),
}
_INVALID: Final = {
    "create": ("hmac", "renew-time-period", "expiry-time-period"),
    "renew": ("renewer-principal", "max-life-time-period", "expiry-time-period", "owner-principal"),
    "expire": ("renew", "max-life-time-period", "renew-time-period", "owner-principal"),
    "describe": ("renew-time-period", "max-life-time-period", "hmac", "expiry-time-period"),
}
_ROW: Final = "\n{:<15} {:<30} {:<15} {:<15} {:<25} {:<15} {:<15} {:<15}"
_HEAD: Final = ("TOKENID", "HMAC", "OWNER", "REQUESTER", "RENEWERS", "ISSUEDATE", "EXPIRYDATE", "MAXDATE")


def main(args: list[str]) -> int:
    """Run kafka-delegation-tokens."""
    parsed = read_flags(FLAGS, args, empty_is_help=True)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(_check, parsed))
    run = {"create": _create, "renew": _renew, "expire": _expire, "describe": _describe}
    action = next(name for name in _ACTIONS if parsed.has(name))
    try:
        with connect(parsed) as cluster:
            run[action](cluster, parsed)
    except KlammError as error:
        raise ToolFailed(java_error(error)) from None
    return 0


def _check(parsed: Parsed) -> None:
    one_action(parsed, _ACTIONS, "Command must include exactly one action: --create, --renew, --expire or --describe")
    action = next(name for name in _ACTIONS if parsed.has(name))
    for name in ("bootstrap-server", "command-config", *_REQUIRED[action]):
        if not parsed.has(name):
            raise Usage(f'Missing required argument "[{name}]"')
    for name in _INVALID[action]:
        if parsed.has(name):
            raise Usage(f'Option "[{action}]" can\'t be used with option "[{name}]"')


def _create(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.admin.delegation_tokens import DelegationTokenAdmin

    renewers = _principals(parsed, "renewer-principal")
    lifetime_ms = parsed.integer("max-life-time-period", -1, bits=64)
    print(f"Calling create token operation with renewers :{_list(renewers)} , max-life-time-period :{lifetime_ms}")
    owners = _principals(parsed, "owner-principal")
    token = cluster.run(
        DelegationTokenAdmin(cluster).create_delegation_token(
            owner=owners[0] if owners else None,
            renewers=renewers,
            max_lifetime_ms=-1 if lifetime_ms is None else lifetime_ms,
        )
    )
    print(f"Created delegation token with tokenId : {token.token_id}")
    _print_tokens([token])


def _renew(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.admin.delegation_tokens import DelegationTokenAdmin

    period_ms = parsed.integer("renew-time-period", -1, bits=64)
    print(f"Calling renew token operation with hmac :{parsed.text('hmac')} , renew-time-period :{period_ms}")
    admin = DelegationTokenAdmin(cluster)
    expires_ms = cluster.run(admin.renew_delegation_token(_hmac(parsed), period_ms=period_ms or 0))
    print(f"Completed renew operation. New expiry date : {_date(expires_ms)}", end="")


def _expire(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.admin.delegation_tokens import DelegationTokenAdmin

    period_ms = parsed.integer("expiry-time-period", -1, bits=64)
    print(f"Calling expire token operation with hmac :{parsed.text('hmac')} , expire-time-period :{period_ms}")
    admin = DelegationTokenAdmin(cluster)
    expires_ms = cluster.run(admin.expire_delegation_token(_hmac(parsed), period_ms=period_ms or 0))
    print(f"Completed expire operation. New expiry date : {_date(expires_ms)}", end="")


def _describe(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.client.admin.delegation_tokens import DelegationTokenAdmin

    owners = _principals(parsed, "owner-principal")
    if owners:
        print(f"Calling describe token operation for owners: {_list(owners)}")
    else:
        print("Calling describe token operation for current user.")
    tokens = cluster.run(DelegationTokenAdmin(cluster).describe_delegation_tokens(owners or None))
    print(f"Total number of tokens : {len(tokens)}", end="")
    _print_tokens(tokens)


def _print_tokens(tokens: Iterable[DelegationToken]) -> None:
    print(_ROW.format(*_HEAD))
    for token in tokens:
        password = base64.b64encode(token.hmac).decode()
        times = map(_date, (token.issued_ms, token.expires_ms, token.max_ms))
        print(_ROW.format(token.token_id, password, token.owner, token.requester, _list(token.renewers), *times))


def _list(principals: Iterable[str]) -> str:
    return f"[{', '.join(principals)}]"


def _date(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(time_ms / 1000))


def _hmac(parsed: Parsed) -> bytes:
    try:
        return base64.b64decode(parsed.text("hmac"), validate=True)
    except binascii.Error:
        raise ToolFailed("the HMAC is no base64; copy it from --describe") from None


def _principals(parsed: Parsed, name: str) -> list[str]:
    try:
        return [str(parse_principal(text.strip())) for text in parsed.all(name)]
    except ValueError as error:
        raise ToolFailed(str(error)) from None
