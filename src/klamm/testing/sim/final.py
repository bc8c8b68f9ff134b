"""The judgement at the end of a run, when everything has healed and nothing moves any more."""

from typing import TYPE_CHECKING, Any

from klamm.records.batch import BatchView, iter_batches
from klamm.records.control import end_txn_marker

if TYPE_CHECKING:
    from klamm.testing.sim.run import Run


def batches_of(log: Any) -> list[BatchView]:
    """All batches of a log, oldest first."""
    found: list[BatchView] = []
    offset, end = log.log_start_offset, log.log_end_offset
    while offset < end:
        piece = log.read(offset, 1 << 22, end)
        if piece is None:
            break
        views = list(iter_batches(piece.read(), allow_incomplete_tail=True))
        if not views:
            break
        found += [view for view in views if view.next_offset > offset]
        offset = views[-1].next_offset
    return found


def check_end(run: "Run") -> None:
    """Every replica holds the same bytes, and they are what was promised."""
    logs: dict[tuple[str, int], list[tuple[int, Any]]] = {}
    for machine in run.cluster.machines.values():
        assert machine.node is not None
        for replica in machine.node.services.replicas:
            logs.setdefault((replica.topic, replica.index), []).append((machine.id, replica.log))
    visible_values: dict[tuple[str, int], set[bytes]] = {}
    for place in sorted(logs):
        copies = logs[place]
        first_id, first = copies[0]
        batches = batches_of(first)
        raw = [bytes(view.raw) for view in batches]
        for other_id, other in copies[1:]:
            theirs = [bytes(view.raw) for view in batches_of(other)]
            if theirs != raw:
                at = next((i for i, (a, b) in enumerate(zip(raw, theirs, strict=False)) if a != b), None)
                where = f"at offset {batches[at].base_offset}" if at is not None else f"{len(raw)} and {len(theirs)}"
                run.violate(f"4: {place[0]}-{place[1]} differs between nodes {first_id} and {other_id}: {where}")
        if not place[0].startswith("__"):
            visible_values[place] = _check_place(run, place, batches)
    run.ledger.check_atomicity(visible_values)
    images = {
        machine.id: machine.node.services.metadata.image  # type: ignore[union-attr]
        for machine in run.cluster.machines.values()
    }
    _check_images(run, images)


def _check_place(run: "Run", place: tuple[str, int], batches: list[BatchView]) -> set[bytes]:
    records: list[tuple[int, bytes]] = []
    expected = batches[0].base_offset if batches else 0
    open_ones: dict[int, list[int]] = {}
    visible: set[int] = set()
    for view in batches:
        view.check_crc()
        if view.base_offset < expected:
            run.violate(f"8: offsets of {place[0]}-{place[1]} go back at {view.base_offset}")
        expected = view.next_offset
        if view.is_control:
            marker = end_txn_marker(view)
            ended = open_ones.pop(view.producer_id, [])
            if marker is not None and marker.committed:
                visible.update(ended)
            continue
        rows = [(record.offset, record.value or b"") for record in view.decode()]
        records += rows
        if view.is_transactional:
            open_ones.setdefault(view.producer_id, []).extend(offset for offset, _ in rows)
        else:
            visible.update(offset for offset, _ in rows)
    if open_ones:
        run.violate(f"10: {place[0]}-{place[1]} has transactions nobody ends: producers {sorted(open_ones)}")
    run.ledger.check_log(place, records, visible)
    return {value for offset, value in records if offset in visible}


def _check_images(run: "Run", images: dict[int, Any]) -> None:
    facts = {
        node: (image.provenance, sorted(image.topics.by_name), sorted(image.cluster.brokers))
        for node, image in images.items()
    }
    if len(set(map(str, facts.values()))) > 1:
        newest = max(fact[0].offset for fact in facts.values())
        same = {str(fact[1:]) for fact in facts.values() if fact[0].offset == newest}
        if len(same) > 1:
            run.violate(f"16: the metadata of nodes differs at the same offset: {facts}")
