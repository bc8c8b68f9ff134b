from pathlib import Path

import pytest

from klamm.storage.disk import Disk
from klamm.storage.leader_epochs import LeaderEpochs


def epochs(folder: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs(Disk(), str(folder))
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def test_the_end_of_an_epoch_is_the_start_of_the_next(tmp_path: Path):
    known = epochs(tmp_path, (2, 10), (5, 20))
    log_end = 30
    expected = {-1: (-1, -1), 1: (1, 10), 2: (2, 20), 3: (2, 20), 5: (5, 30), 6: (-1, -1)}
    assert {epoch: known.end_offset_for(epoch, log_end) for epoch in expected} == expected
    assert [known.epoch_for_offset(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 5, 5]


def test_every_change_is_on_disk(tmp_path: Path):
    epochs(tmp_path, (0, 0), (3, 7))
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n3 7\n"
    assert epochs(tmp_path).entries() == [(0, 0), (3, 7)]


def test_the_same_epoch_again_changes_nothing_but_an_earlier_start_does(tmp_path: Path):
    known = epochs(tmp_path, (1, 5), (1, 9))
    assert known.entries() == [(1, 5)]
    known.assign(1, 3)
    assert known.entries() == [(1, 3)]


def test_a_new_epoch_takes_the_place_of_those_that_contradict_it(tmp_path: Path):
    known = epochs(tmp_path, (1, 0), (2, 10), (3, 20))
    known.assign(4, 10)
    assert known.entries() == [(1, 0), (4, 10)]
    known.assign(2, 30)
    assert known.entries() == [(1, 0), (2, 30)]


def test_cutting_the_end(tmp_path: Path):
    known = epochs(tmp_path, (1, 0), (2, 10), (3, 20))
    known.truncate_from_end(10)
    assert known.entries() == [(1, 0)]
    assert epochs(tmp_path).latest == 1


def test_moving_the_start(tmp_path: Path):
    known = epochs(tmp_path, (1, 0), (2, 10), (3, 20))
    known.truncate_from_start(15)
    assert known.entries() == [(2, 15), (3, 20)]
    known.truncate_from_start(15)
    assert known.entries() == [(2, 15), (3, 20)]
    known.truncate_from_start(20)
    assert known.entries() == [(3, 20)]
    known.truncate_from_start(5)
    assert known.entries() == [(3, 20)]


@pytest.mark.parametrize("torn", ["7\n0\n", "0\n", "0\n2\n1 0\n", "0\n1\n1 12", "0\n1\n1\n", "\0" * 8])
def test_a_torn_file_counts_as_none_and_says_so(tmp_path: Path, torn: str):
    (tmp_path / "leader-epoch-checkpoint").write_text(torn)
    assert epochs(tmp_path).damaged
    assert epochs(tmp_path).entries() == []


def test_what_the_log_knows_of_earlier_epochs_is_put_before_the_first_entry(tmp_path: Path):
    known = epochs(tmp_path)
    known.assign(2, 20)
    known.assign(5, 30)
    known.extend_back([(0, 0), (1, 10), (2, 15), (5, 31)])
    assert known.entries() == [(0, 0), (1, 10), (2, 15), (5, 30)]
    assert known.reaches(0)


def test_a_batch_of_another_life_is_believed_more_than_the_file(tmp_path: Path):
    known = epochs(tmp_path)
    for epoch, start in ((0, 0), (2, 4), (3, 8)):
        known.assign(epoch, start)
    known.correct(0, 4)
    assert known.entries() == [(0, 0)]
    known.correct(1, 6)
    assert known.entries() == [(0, 0), (1, 6)]
