"""Credentials of users that do not exist, for brokers' sides of a login without a metadata log."""

from functools import partial

from klamm.security.core.scram import DecoyShape, ScramHash, ScramKeys, decoy_keys


def _make(mechanism: ScramHash, user: str, _is_token: bool) -> ScramKeys:
    return decoy_keys(mechanism, user, b"decoy", [DecoyShape(24, 4096)])


def decoy_maker(mechanism: ScramHash):
    """What `ScramServer` takes."""
    return partial(_make, mechanism)
