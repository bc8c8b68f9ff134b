"""Plans that forms carry the hash of."""

import pytest

from klamm.client import TopicPartition
from klamm.console.shown_plans import ShownPlans
from klamm.http.refusals import HttpRefusal

ABOUT = ("test", "reset", "group")


def make_plan(partitions, offset=0):
    return {TopicPartition("orders", index): offset for index in range(partitions)}


def is_kept(plans, digest, session="one", about=ABOUT):
    try:
        plans.find(session, about, digest)
    except HttpRefusal:
        return False
    return True


def test_a_plan_is_found_by_its_session_subject_and_hash():
    plans = ShownPlans()
    digest = plans.keep("one", ABOUT, make_plan(3))
    assert plans.find("one", ABOUT, digest) == make_plan(3)
    assert plans.keep("one", ABOUT, make_plan(3)) == digest
    assert not is_kept(plans, digest, session="two")
    assert not is_kept(plans, digest, about=("test", "reset", "other"))
    with pytest.raises(HttpRefusal, match="show it again"):
        plans.find("one", ABOUT, "")


def test_a_session_has_a_few_plans_and_all_have_a_limit_of_partitions():
    plans = ShownPlans(per_session=2, partitions_max=10)
    first, second, third = (plans.keep("one", ABOUT, make_plan(2, offset)) for offset in range(3))
    assert [is_kept(plans, digest) for digest in (first, second, third)] == [False, True, True]
    # The largest plan is kept all the same, alone.
    large = plans.keep("two", ABOUT, make_plan(50))
    assert is_kept(plans, large, session="two")
    assert not is_kept(plans, third)
    plans.keep("one", ABOUT, make_plan(1))
    assert not is_kept(plans, large, session="two")
