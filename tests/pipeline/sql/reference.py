"""What a pipeline shall make of its inputs, computed in plain Python over the whole history: no Spark, no Klamm.

A history is a list of steps: the rows that came between two runs of the queries. Rows are dicts; times are milliseconds
under `at`. The rule for late rows is the contract of docs/guides/pipeline-bad-data.md:

- A query knows one watermark: the newest time of each stream less its delay, and of several streams the smallest. A run
  looks at the rows of that run alone, so a stream of which nothing came holds the others; a watermark never goes back.
- A row is late when what it belongs to had ended by the watermark of the run before: its window, or itself.
- At the end of a run what has ended by then is emitted and forgotten.
"""

from collections import defaultdict


class Watermark:
    """How far the time of a query has come."""

    def __init__(self, *delays):
        self._delays = delays
        self.now = 0

    def run(self, *streams):
        """Look at the rows of a run, stream by stream."""
        times = [[row["at"] for row in rows if row["at"] is not None] for rows in streams]
        newest = [
            max(stream_times) - delay if stream_times else 0
            for stream_times, delay in zip(times, self._delays, strict=True)
        ]
        self.now = max(self.now, min(newest))


def flat(history):
    return [row for rows in history for row in rows]


# Tables


def table(changes, key):
    """The newest row of each key; a change that has nothing but its key is a deletion."""
    newest = {}
    for row in changes:
        if set(row) == {key}:
            newest.pop(row[key], None)
        else:
            newest[row[key]] = row
    return newest


def tables(history, key):
    """A table as it is after each step."""
    return [table(flat(history[: number + 1]), key) for number in range(len(history))]


def differences(states):
    """The records that take a table from state to state: its values, and None where a key went."""
    changes, before = [], {}
    for now in states:
        changes += [(key, now.get(key)) for key in {**before, **now} if before.get(key) != now.get(key)]
        before = now
    return changes


def aggregated(history, group, make):
    """The output of an aggregation in each step: a value for every group that got rows, made of all its rows."""
    groups, outputs = defaultdict(list), []
    for rows in history:
        for row in rows:
            groups[group(row)].append(row)
        outputs.append({key: make(groups[key]) for key in {group(row) for row in rows}})
    return outputs


def upserted(outputs):
    """A table after each step, by the outputs of the steps; None deletes."""
    states, now = [], {}
    for output in outputs:
        now = {key: value for key, value in {**now, **output}.items() if value is not None}
        states.append(now)
    return states


# Time


def windows(history, size, slide, delay, group):
    """Rows by group and start of their window; and the watermark at the end, by which a window has ended or not."""
    mark, rows_by_window = Watermark(delay), defaultdict(list)
    for rows in history:
        for row in rows:
            if row["at"] is None:
                continue
            newest = row["at"] - row["at"] % slide
            for start in range(newest, row["at"] - size, -slide):
                if start + size > mark.now:
                    rows_by_window[group(row), start].append(row)
        mark.run(rows)
    return rows_by_window, mark.now


def ended(grouped, size):
    """Those of `windows` that have ended."""
    groups, now = grouped
    return {(group, start): rows for (group, start), rows in groups.items() if start + size <= now}


def sessions(history, gap, delay, group):
    """(group, start, end, rows) of each session that has ended: rows no further apart than the gap."""
    mark, waiting, done = Watermark(delay), [], []
    for rows in history:
        waiting += [
            (group(row), row["at"], row["at"] + gap, [row])
            for row in rows
            if row["at"] is not None and row["at"] + gap > mark.now
        ]
        mark.run(rows)
        merged = []
        for key, start, end, inside in sorted(waiting, key=lambda session: (repr(session[0]), session[1])):
            if merged and merged[-1][0] == key and start <= merged[-1][2]:
                _, first, last, before = merged.pop()
                merged.append((key, first, max(last, end), before + inside))
            else:
                merged.append((key, start, end, inside))
        done += [session for session in merged if session[2] <= mark.now]
        waiting = [session for session in merged if session[2] > mark.now]
    return done


def joined(lefts, rights, key, longest, delays):
    """Pairs of a key with the right time in [left time, left time + longest], and left rows that stay alone."""
    mark, pairs, alone = Watermark(*delays), [], []
    left, right, paired = [], [], set()
    for left_rows, right_rows in zip(lefts, rights, strict=True):
        new_left, new_right = _in_time(left_rows, mark.now), _in_time(right_rows, mark.now)
        fresh = [(one, other) for one in new_left for other in right + new_right]
        fresh += [(one, other) for one in left for other in new_right]
        fresh = [pair for pair in fresh if _fits(*pair, key, longest)]
        pairs += fresh
        paired |= {id(one) for one, _ in fresh}
        left, right = left + new_left, right + new_right
        mark.run(left_rows, right_rows)
        gone = [row for row in left if row["at"] is not None and row["at"] + longest < mark.now]
        alone += [row for row in gone if id(row) not in paired]
        left = [row for row in left if row not in gone]
    return pairs, alone


def _fits(one, other, key, longest):
    if None in (one[key], one["at"], other["at"]):
        return False
    return one[key] == other[key] and one["at"] <= other["at"] <= one["at"] + longest


def _in_time(rows, now):
    return [row for row in rows if row["at"] is None or row["at"] > now]


# Doubles


def once(history, key):
    """The first row of each key."""
    seen = set()
    return [row for row in flat(history) if row[key] not in seen and not seen.add(row[key])]


def once_within(history, key, delay):
    """The first row of each key, which is remembered until the watermark has passed its time and the delay."""
    mark, until, first_rows = Watermark(delay), {}, []
    for rows in history:
        for row in rows:
            if row["at"] > mark.now and row[key] not in until:
                until[row[key]] = row["at"] + delay
                first_rows.append(row)
        mark.run(rows)
        until = {key: end for key, end in until.items() if end > mark.now}
    return first_rows
