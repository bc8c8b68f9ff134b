"""Bounds, lengths and patterns: the keywords that compare by their values."""

from __future__ import annotations

import re

from klamm.registry.schemas.comparison import Incompatibility, join_names
from klamm.registry.schemas.json_schema.facts import Bound, Facts


def compare_numbers(demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
    """Compare the bounds of numbers and what they are multiples of."""
    incompatibilities = [
        incompatibility
        for bounds, old_bounds, lower in ((demands.lower, given.lower, True), (demands.upper, given.upper, False))
        for bound in bounds
        for incompatibility in _compare_bound(bound, old_bounds, path, lower=lower)
    ]
    for multiple in demands.multiples:
        if any(old % multiple == 0 for old in given.multiples):
            continue
        if not given.multiples:
            kind = "MULTIPLE_OF_ADDED"
        else:
            expanded = any(multiple % old == 0 for old in given.multiples)
            kind = "MULTIPLE_OF_EXPANDED" if expanded else "MULTIPLE_OF_CHANGED"
        message = f"Not every old number at path '{path}' is a multiple of {multiple}"
        incompatibilities.append(Incompatibility(kind, f"{path}/multipleOf", message))
    return incompatibilities


def _compare_bound(bound: Bound, old_bounds: list[Bound], path: str, *, lower: bool) -> list[Incompatibility]:
    needed = bound.tightness(lower=lower)
    if any(old.tightness(lower=lower) >= needed for old in old_bounds):
        return []
    name = _constant_name(bound.keyword)
    change = ("INCREASED" if lower else "DECREASED") if old_bounds else "ADDED"
    message = f"{bound.keyword} at path '{path}' is {bound.value}, which excludes old numbers"
    return [Incompatibility(f"{name}_{change}", f"{path}/{bound.keyword}", message)]


def compare_lengths(demands: Facts, given: Facts, noun: str, path: str) -> list[Incompatibility]:
    """Compare `minLength` and `maxLength`, or the same of `Items` or `Properties`."""
    incompatibilities = []
    for prefix, change in (("min", "INCREASED"), ("max", "DECREASED")):
        keyword = f"{prefix}{noun}"
        new, old = demands.lengths.get(keyword), given.lengths.get(keyword)
        if new is None or (old is not None and (old >= new if prefix == "min" else old <= new)):
            continue
        kind = f"{_constant_name(keyword)}_{'ADDED' if old is None else change}"
        old_text = "not limited" if old is None else str(old)
        message = f"{keyword} at path '{path}' is {new}, the old one is {old_text}"
        incompatibilities.append(Incompatibility(kind, f"{path}/{keyword}", message))
    return incompatibilities


def compare_patterns(demands: Facts, given: Facts, path: str) -> list[Incompatibility]:
    """Compare patterns as texts: whether one expression contains another is not decided."""
    missing = demands.patterns - given.patterns
    if not missing:
        return []
    kind = "PATTERN_CHANGED" if given.patterns else "PATTERN_ADDED"
    return [
        Incompatibility(kind, f"{path}/pattern", f"Old texts at path '{path}' need not match {join_names(missing)}")
    ]


def _constant_name(keyword: str) -> str:
    return re.sub(r"(?=[A-Z])", "_", keyword).upper()
