"""A compacted log against a plain list: whatever is done to both, the newest of every key is there, after kills too."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from .test_compaction import CompactionNode, end, in_transaction

HOUR = 3600 * 1000
KEYS = [b"a", b"b", b"c", b"a-longer-key"]
POLICY = {"cleanup_policy": frozenset({"compact", "delete"}), "retention_ms": 10 * HOUR, "delete_retention_ms": HOUR}


class CompactedLogAgainstList(RuleBasedStateMachine):
    """`self.model` holds every record ever written as [offset, key, value, fate]; fate is "open" inside an open
    transaction, else "committed" or "aborted".
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.node = CompactionNode(self.folder / "data", **POLICY)
        self.model: list[list] = []
        self.made = 0
        self.sequences = {7: 0, 9: 0}
        self.kills = 0

    def teardown(self) -> None:
        self.node.manager.close(clean=False)
        shutil.rmtree(self.folder)

    def rows(self, keys: list[tuple[bytes, bool]]) -> list[tuple[bytes, bytes | None]]:
        made = []
        for key, deleted in keys:
            self.made += 1
            made.append((key, None if deleted else b"%d" % self.made))
        return made

    def note(self, offset: int, rows, fate: str) -> None:
        self.model += [[offset + i, key, value, fate] for i, (key, value) in enumerate(rows)]

    records = st.lists(
        st.tuples(st.sampled_from(KEYS), st.integers(0, 4).map(lambda n: n == 0)), min_size=1, max_size=4
    )

    @rule(groups=st.lists(records, min_size=1, max_size=8), codec=st.sampled_from([0, 0, 4]), idempotent=st.booleans())
    def put(self, groups, codec: int, idempotent: bool) -> None:
        for keys in groups:
            rows = self.rows(keys)
            fields = {}
            if idempotent:
                fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": self.sequences[7]}
                self.sequences[7] += len(rows)
            self.note(self.node.put(*rows, codec=codec, **fields), rows, "committed")
            self.node.clock.advance(1000)

    @rule(keys=records)
    def put_in_transaction(self, keys) -> None:
        rows = self.rows(keys)
        offset = in_transaction(self.node, self.sequences[9], *rows)
        self.sequences[9] += len(rows)
        self.note(offset, rows, "open")

    @precondition(lambda self: any(row[3] == "open" for row in self.model))
    @rule(committed=st.booleans())
    def end_transaction(self, committed: bool) -> None:
        end(self.node, 9, committed=committed)
        for row in self.model:
            if row[3] == "open":
                row[3] = "committed" if committed else "aborted"

    @rule()
    def roll(self) -> None:
        self.node.roll()

    @rule(hours=st.integers(0, 3))
    def clean(self, hours: int) -> None:
        self.node.clock.advance(hours * HOUR)
        self.node.clean()

    @rule(hours=st.integers(0, 6))
    def retain(self, hours: int) -> None:
        self.node.clock.advance(hours * HOUR)
        self.node.log.flush()
        self.node.log.apply_retention(self.node.clock.now_ms())

    @rule(data=st.data())
    def delete_records(self, data) -> None:
        log = self.node.log
        log.delete_records(data.draw(st.integers(log.log_start_offset, log.high_watermark)))

    @rule(killed=st.booleans())
    def restart(self, killed: bool) -> None:
        now, start = self.node.clock.now_ms(), self.node.log.log_start_offset
        self.kills += 1
        if killed:
            self.node.manager.checkpoint()
        self.node = self.node.reopened(killed=killed)
        self.node.clock.advance(now - self.node.clock.now_ms())
        assert self.node.log.log_start_offset >= start
        self.node.log.advance_high_watermark(self.node.log.log_end_offset)

    @invariant()
    def the_newest_of_every_key_is_there(self) -> None:
        log = self.node.log
        written = {row[0]: row for row in self.model}
        visible = self.node.rows()
        offsets = [row[0] for row in visible]
        assert offsets == sorted(set(offsets))
        for offset, key, value in visible:
            assert written[offset][1:3] == [key, value], "nothing appears that was not written"
        assert log.log_end_offset >= (self.model[-1][0] + 1 if self.model else 0), "no offset is given twice"
        seen = set(offsets)
        newest = {row[1]: row for row in self.model if row[3] == "committed" and row[0] >= log.log_start_offset}
        for row in newest.values():
            assert row[2] is None or row[0] in seen, f"the newest record of {row[1]!r} is lost"
        for row in self.model:
            # A tombstone may go; then no older value of its key may be left to be taken for the newest.
            if row[3] == "committed" and row[2] is None and newest.get(row[1]) is row and row[0] not in seen:
                assert not [o for o in seen if written[o][1] == row[1] and o < row[0] and written[o][3] == "committed"]
            assert row[3] != "open" or row[0] < log.log_start_offset or row[0] in seen, "undecided records stay"

    @invariant()
    def producers_are_remembered(self) -> None:
        producers = self.node.log.producers.entries
        for producer_id, sequence in self.sequences.items():
            if sequence and producer_id in producers and producers[producer_id].batches:
                assert producers[producer_id].next_sequence == sequence


CompactedLogAgainstList.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestCompactedLogAgainstList = CompactedLogAgainstList.TestCase
