from pathlib import Path

from klamm.storage.disk import Disk
from klamm.storage.txn_index import AbortedTxn, TxnIndex


def test_entries_survive_and_are_found_by_the_offsets_they_touch(tmp_path: Path):
    path = str(tmp_path / "0.txnindex")
    index = TxnIndex(Disk(), path)
    first, second = AbortedTxn(1, 0, 10, 11), AbortedTxn(2, 5, 20, 21)
    index.append(first)
    index.append(second)
    again = TxnIndex(Disk(), path)
    assert again.entries() == [first, second]
    assert again.collect(0, 5) == ([first], True)
    assert again.collect(11, 30) == ([second], False)
    assert again.collect(21, 30) == ([], False)


def test_truncation_forgets_markers_at_or_after_the_offset(tmp_path: Path):
    path = str(tmp_path / "0.txnindex")
    index = TxnIndex(Disk(), path)
    index.append(AbortedTxn(1, 0, 10, 11))
    index.append(AbortedTxn(2, 5, 20, 21))
    index.truncate_to(20)
    assert [txn.producer_id for txn in TxnIndex(Disk(), path).entries()] == [1]
    index.truncate_to(0)
    assert not (tmp_path / "0.txnindex").exists()
