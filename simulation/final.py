"""The judgement at the end of a run, when everything has healed and nothing moves any more."""

from typing import TYPE_CHECKING, Any

from klamm.records.batch import BatchView
from simulation.compacted import check_compacted
from simulation.consumers import SimConsumer
from simulation.copiers import Copier
from simulation.ledger import Place
from simulation.log_content import batches_of, read_batches

if TYPE_CHECKING:
    from simulation.run import Run


def check_end(run: "Run") -> None:
    """Every replica holds the same bytes, and they are what was promised; where compaction works, the same content."""
    logs: dict[tuple[str, int], list[tuple[int, Any]]] = {}
    for machine in run.cluster.machines.values():
        assert machine.node is not None
        for replica in machine.node.services.replicas:
            logs.setdefault((replica.topic, replica.index), []).append((machine.id, replica.log))
    visible_values: dict[Place, dict[int, bytes]] = {}
    for place in sorted(logs):
        copies = logs[place]
        if copies[0][1].config.compacted:
            check_compacted(run, place, copies)
            continue
        batches = _check_copies(run, place, copies)
        if not place[0].startswith("__"):
            visible_values[place] = _check_place(run, place, batches)
    run.ledger.check_atomicity({place: set(values.values()) for place, values in visible_values.items()})
    _check_copied(run, visible_values)
    images = {
        machine.id: machine.node.services.metadata.image  # type: ignore[union-attr]
        for machine in run.cluster.machines.values()
    }
    _check_images(run, images)
    if run.plan.secured:
        run.rights_admin.check()
        run.rights.check_nodes(run)


def _check_copies(run: "Run", place: Place, copies: list[tuple[int, Any]]) -> list[BatchView]:
    first_id, first = copies[0]
    batches = batches_of(first)
    raw = [bytes(view.raw) for view in batches]
    for other_id, other in copies[1:]:
        theirs = [bytes(view.raw) for view in batches_of(other)]
        if theirs != raw:
            at = next((i for i, (a, b) in enumerate(zip(raw, theirs, strict=False)) if a != b), None)
            where = f"at offset {batches[at].base_offset}" if at is not None else f"{len(raw)} and {len(theirs)}"
            run.violate(f"4: {place[0]}-{place[1]} differs between nodes {first_id} and {other_id}: {where}")
    return batches


def _check_place(run: "Run", place: Place, batches: list[BatchView]) -> dict[int, bytes]:
    where = f"{place[0]}-{place[1]}"
    written = read_batches(batches, lambda offset: run.violate(f"8: offsets of {where} go back at {offset}"))
    if written.open_ones:
        run.violate(f"10: {where} has transactions that do not end: producers {sorted(written.open_ones)}")
    records = [(record.offset, record.value or b"") for record in written.records]
    visible = written.visible
    run.ledger.check_log(place, records, visible)
    shown = {offset: value for offset, value in records if offset in visible}
    _check_readers(run, place, dict(records), shown)
    return shown


def _check_readers(run: "Run", place: Place, stored: dict[int, bytes], shown: dict[int, bytes]) -> None:
    """What went in came out: as many records and as many bytes, at every reader that has read to the end."""
    for client in run.clients:
        if not isinstance(client, SimConsumer) or client.topic != place[0]:
            continue
        reader = client.readers[place[1]] if place[1] < len(client.readers) else None
        there = shown if client.committed_only else stored
        expected = (len(there), sum(map(len, there.values())))
        if reader is not None and (reader.records, reader.bytes) != expected:
            run.violate(
                f"19: {client.name} read {reader.records} records of {reader.bytes} bytes in {place[0]}-{place[1]},"
                f" where {expected[0]} of {expected[1]} are"
            )


def _check_copied(run: "Run", visible: dict[Place, dict[int, bytes]]) -> None:
    """What a copier has read is copied exactly once, and nothing else is."""
    for client in run.clients:
        if not isinstance(client, Copier):
            continue
        for index, position in client.positions.items():
            sources = sorted(v for offset, v in visible.get((client.source, index), {}).items() if offset < position)
            mine = client.name.encode() + b"/"
            copies = sorted(
                value.split(b":", 1)[1]
                for value in visible.get((client.topic, index), {}).values()
                if value.startswith(mine)
            )
            if copies != sources:
                differ = sorted((set(sources) ^ set(copies)) or {v for v in copies if copies.count(v) > 1})
                run.violate(
                    f"9: {client.name} stands at {client.source}-{index}@{position} after {len(sources)} records and"
                    f" has {len(copies)} copies: {differ[:3]}"
                )


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
