"""Two results side by side: what changed beyond noise.

In: records. Out: one `Change` a row that both have. A change counts when its interval over the
prompts excludes 1 and the totals of the repeats do not overlap; results of other machines, bundles
or prompts are still compared, but the difference is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .figures import Spread
from .ratios import Ratio, compare_rows
from .record import Record
from .summary import rate_repeats, tabulate
from .table import align, number


@dataclass(frozen=True, kw_only=True)
class Change:
    """One row in both results; `ratio` is the new rate over the old one."""

    row: str
    ratio: Ratio
    old: Spread
    new: Spread

    @property
    def is_real(self) -> bool:
        """Whether the change lies beyond noise."""
        outside = self.ratio.low > 1 or self.ratio.high < 1
        return outside and (self.new.low > self.old.high or self.new.high < self.old.low)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All changes, rows that only one result has, and what differs in what was measured."""

    changes: tuple[Change, ...]
    gone: tuple[str, ...]
    fresh: tuple[str, ...]
    differences: tuple[str, ...]


def compare_records(old: Record, new: Record) -> Comparison:
    """Return what changed from `old` to `new`."""
    old_rows, new_rows = ([row.name for row in record.rows] for record in (old, new))
    found = (compare_row(name, old.main(), new.main()) for name in new_rows if name in old_rows)
    return Comparison(
        changes=tuple(change for change in found if change is not None),
        gone=tuple(name for name in old_rows if name not in new_rows),
        fresh=tuple(name for name in new_rows if name not in old_rows),
        differences=tuple(find_differences(old, new)),
    )


def compare_row(name: str, old: Record, new: Record) -> Change | None:
    """Return the change of one row, or None if it has no figures on prompts of both."""
    before, after = tabulate(old.samples, name), tabulate(new.samples, name)
    ratio = compare_rows(name, name, after, before, parted=[], same_engine=False)
    if ratio is None:
        return None
    spreads = [_spread(rate_repeats(table)) for table in (before, after)]
    return Change(row=name, ratio=ratio, old=spreads[0], new=spreads[1])


def find_differences(old: Record, new: Record) -> list[str]:
    """Return what was not the same: parts of the header, and versions of the engines."""
    lines: list[str] = []
    for part in ("machine", "bundle", "prompts", "settings"):
        before, after = old.header.get(part, {}), new.header.get(part, {})
        lines += _differences(part, before, after)
    for name in [name for name in new.workers if name in old.workers]:
        before, after = old.workers[name].versions, new.workers[name].versions
        lines += _differences(name, before, after)
    return lines


def render_changes(comparison: Comparison) -> str:
    """Return the comparison as text."""
    lines: list[list[str]] = [
        ["row", "old tokens/s", "new tokens/s", "new / old (95 %)", "prompts", ""]
    ]
    for change in comparison.changes:
        ratio = change.ratio
        verdict = ("faster" if ratio.mean > 1 else "SLOWER") if change.is_real else "within noise"
        lines.append(
            [
                change.row,
                number(change.old.median, 1),
                number(change.new.median, 1),
                f"{ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
                str(ratio.prompts),
                verdict,
            ]
        )
    notes = [f"not the same: {line}" for line in comparison.differences]
    notes += [f"only in the old result: {name}" for name in comparison.gone]
    notes += [f"only in the new result: {name}" for name in comparison.fresh]
    table = align(lines) or "no row is in both results"
    return "\n\n".join(part for part in (table, "\n".join(notes)) if part)


def _differences(part: str, old: Mapping[str, object], new: Mapping[str, object]) -> Sequence[str]:
    return [
        f"{part}, {name}: {old.get(name, 'nothing')} before, {new.get(name, 'nothing')} now"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name) and name != "load before"
    ]


def _spread(rates: Sequence[float | None]) -> Spread:
    known = sorted(rate for rate in rates if rate is not None)
    return Spread(median=known[len(known) // 2], low=known[0], high=known[-1])
