"""Planted bugs."""

BUGS: dict = {}


def hunt(*a):
    return None
