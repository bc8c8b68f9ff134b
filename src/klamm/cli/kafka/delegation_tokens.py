"""kafka-delegation-tokens: create, renew, expire and describe delegation tokens."""

from __future__ import annotations

import base64
import binascii
import functools
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, one_action
from klamm.cli.kafka.script import ToolFailed, checked, connect, java_error, read_flags
from klamm.model.errors import ErrorCode, KlammError
from klamm.security.core.principal import Principal, parse_principal

if TYPE_CHECKING:
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
    checked(FLAGS, functools.partial(_check, parsed))
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
    from klamm.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest

    renewers = _principals(parsed, "renewer-principal")
    lifetime_ms = parsed.integer("max-life-time-period", -1, bits=64)
    print(f"Calling create token operation with renewers :{_list(renewers)} , max-life-time-period :{lifetime_ms}")
    owners = _principals(parsed, "owner-principal")
    owner = owners[0] if owners else None
    token = _ask(
        cluster,
        CreateDelegationTokenRequest(
            owner_principal_type=owner.type if owner else None,
            owner_principal_name=owner.name if owner else None,
            renewers=[
                CreatableRenewers(principal_type=renewer.type, principal_name=renewer.name) for renewer in renewers
            ],
            max_lifetime_ms=-1 if lifetime_ms is None else lifetime_ms,
        ),
    )
    print(f"Created delegation token with tokenId : {token.token_id}")
    row = _row(token, renewers, token.issue_timestamp_ms, token.expiry_timestamp_ms, token.max_timestamp_ms)
    _print_tokens([row])


def _renew(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest

    period_ms = parsed.integer("renew-time-period", -1, bits=64)
    print(f"Calling renew token operation with hmac :{parsed.text('hmac')} , renew-time-period :{period_ms}")
    request = RenewDelegationTokenRequest(hmac=_hmac(parsed), renew_period_ms=period_ms or 0)
    response = _ask(cluster, request)
    print(f"Completed renew operation. New expiry date : {_date(response.expiry_timestamp_ms)}", end="")


def _expire(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest

    period_ms = parsed.integer("expiry-time-period", -1, bits=64)
    print(f"Calling expire token operation with hmac :{parsed.text('hmac')} , expire-time-period :{period_ms}")
    request = ExpireDelegationTokenRequest(hmac=_hmac(parsed), expiry_time_period_ms=period_ms or 0)
    response = _ask(cluster, request)
    print(f"Completed expire operation. New expiry date : {_date(response.expiry_timestamp_ms)}", end="")


def _describe(cluster: BlockingCluster, parsed: Parsed) -> None:
    from klamm.protocol.messages.describe_delegation_token import (
        DescribeDelegationTokenOwner,
        DescribeDelegationTokenRequest,
    )

    owners = _principals(parsed, "owner-principal")
    if owners:
        print(f"Calling describe token operation for owners: {_list(owners)}")
    else:
        print("Calling describe token operation for current user.")
    named = [DescribeDelegationTokenOwner(principal_type=owner.type, principal_name=owner.name) for owner in owners]
    tokens = _ask(cluster, DescribeDelegationTokenRequest(owners=named or None)).tokens
    print(f"Total number of tokens : {len(tokens)}", end="")
    _print_tokens(
        _row(
            token,
            [Principal(renewer.principal_type, renewer.principal_name) for renewer in token.renewers],
            token.issue_timestamp,
            token.expiry_timestamp,
            token.max_timestamp,
        )
        for token in tokens
    )


def _ask(cluster: BlockingCluster, request: Any) -> Any:
    response = cluster.ask(request)
    if response.error_code:
        raise KlammError(ErrorCode(response.error_code))
    return response


def _row(token: Any, renewers: Iterable[Principal], *times_ms: int) -> tuple[str, ...]:
    owner = Principal(token.principal_type, token.principal_name)
    requester = Principal(token.token_requester_principal_type, token.token_requester_principal_name)
    password = base64.b64encode(token.hmac).decode()
    return (token.token_id, password, str(owner), str(requester), _list(renewers), *map(_date, times_ms))


def _print_tokens(rows: Iterable[tuple[str, ...]]) -> None:
    for row in (_HEAD, *rows):
        print(_ROW.format(*row))


def _list(principals: Iterable[Principal]) -> str:
    return f"[{', '.join(map(str, principals))}]"


def _date(time_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M", time.localtime(time_ms / 1000))


def _hmac(parsed: Parsed) -> bytes:
    try:
        return base64.b64decode(parsed.text("hmac"), validate=True)
    except binascii.Error:
        raise ToolFailed("the HMAC is no base64; copy it from --describe") from None


def _principals(parsed: Parsed, name: str) -> list[Principal]:
    try:
        return [parse_principal(text.strip()) for text in parsed.all(name)]
    except ValueError as error:
        raise ToolFailed(str(error)) from None
