"""The states of a classic group. Everything that moves a group goes through this table.

Empty                a member joins                          -> PreparingRebalance
PreparingRebalance   all joined, or time is up               -> CompletingRebalance
                     no member is left                       -> Empty
CompletingRebalance  the leader's assignment is stored       -> Stable
                     a member rejoins, leaves or expires     -> PreparingRebalance
Stable               a member joins, changes, leaves, expires -> PreparingRebalance
any                  the group is removed                    -> Dead
"""

from enum import Enum


class GroupState(Enum):
    """The state of a classic group; values are the names Kafka shows."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


EMPTY = GroupState.EMPTY
PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE
COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
STABLE = GroupState.STABLE
DEAD = GroupState.DEAD

PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    EMPTY: frozenset({PREPARING_REBALANCE}),
    PREPARING_REBALANCE: frozenset({EMPTY, COMPLETING_REBALANCE, STABLE}),
    COMPLETING_REBALANCE: frozenset({PREPARING_REBALANCE}),
    STABLE: frozenset({COMPLETING_REBALANCE}),
    DEAD: frozenset(GroupState),
}
"""From where each state may be entered."""
