"""A cost table in words and as plain data: what `costs` prints.

In: a table and its key. Out: lines for a terminal, or a mapping for JSON.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .costs import QUIET, TARGET, CostTable, Mode, best_static_k, break_even_acceptance
from .kept_costs import CostKey

KS = (1, 2, 3, 4, 5, 6, 7, 8)
ACCEPTANCES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
_MS = 1e3


@dataclass(frozen=True, kw_only=True)
class CostReport:
    """A table, what it holds for, and which questions to answer with it.

    Attributes:
        key: of the table.
        table: what passes cost.
        mode: how laws are drawn from.
        depth: tokens in the caches.
        acceptances: constant acceptances to find the best k for.
    """

    key: CostKey
    table: CostTable
    mode: Mode = "greedy"
    depth: int | None = None
    acceptances: Sequence[float] = ACCEPTANCES

    @property
    def at(self) -> int:
        """The depth that figures hold for."""
        return self.table.depth if self.depth is None else self.depth

    def break_even(self, drafter: str) -> dict[int, float | None]:
        """Return the acceptance at which each k costs what it gains."""
        return {
            k: break_even_acceptance(self.table, k, drafter, mode=self.mode, depth=self.at)
            for k in KS
        }

    def best_k(self, drafter: str) -> dict[float, tuple[int, float]]:
        """Return the best k and its speed-up for each acceptance."""
        return {
            acceptance: best_static_k(
                self.table, acceptance, drafter, mode=self.mode, depth=self.at
            )
            for acceptance in self.acceptances
        }

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data; seconds, not milliseconds."""
        table = self.table
        return {
            "key": asdict(self.key),
            "depth": self.at,
            "mode": self.mode,
            "plain_seconds": table.plain_seconds(self.at),
            "v": {m: table.v(m, depth=self.at) for m in table.models[TARGET].widths},
            "c": {drafter: table.c(drafter, depth=self.at) for drafter in table.drafters},
            "break_even_acceptance": {name: self.break_even(name) for name in table.drafters},
            "best_k": {
                name: [
                    {"acceptance": acceptance, "k": k, "speedup": speedup}
                    for acceptance, (k, speedup) in self.best_k(name).items()
                ]
                for name in table.drafters
            },
            "table": asdict(table),
        }


def describe_costs(report: CostReport) -> Iterator[str]:
    """Yield the lines of a report for a terminal."""
    key, table = report.key, report.table
    yield f"machine   {key.machine}, {key.cores} usable cores, {key.provider}"
    yield f"versions  ONNX Runtime {key.onnxruntime}, NumPy {key.numpy}"
    yield from _describe_threads(table)
    if table.threads.spins and key.provider == "cpu" and table.share < QUIET:
        yield (
            "warning   the machine was busy: the main thread had a core for "
            f"{100 * table.share:.0f} % of its time; measure again, with --refresh, when it is not"
        )
    yield ""
    yield "a pass over m tokens, behind a cache of few and of many"
    yield from _align(_pass_lines(report))
    yield ""
    yield f"v = over a plain step of {_MS * table.plain_seconds(report.at):.2f} ms"
    for drafter in table.drafters:
        yield f"c({drafter}) = {table.c(drafter, depth=report.at):.3f}"
    yield ""
    yield f"acceptance at which drafting k tokens breaks even ({report.mode})"
    yield from _align(_break_even_lines(report))
    yield ""
    yield f"best fixed k at an acceptance, and its speed-up ({report.mode})"
    yield from _align(_best_lines(report))


def _describe_threads(table: CostTable) -> Iterator[str]:
    for i, (threads, seconds) in enumerate(table.settings):
        words = f"{threads.count}, {'spinning in a run' if threads.spins else 'sleeping'}"
        tried = f", {_MS * seconds:.1f} ms for a plain step and a round of k = 1" if seconds else ""
        yield f"{'threads   ' if i == 0 else '  slower: '}{words}{tried}"


def _pass_lines(report: CostReport) -> list[list[str]]:
    table = report.table
    deepest = int(table.models[TARGET].plain.points[-1][0])
    columns = [(name, depth) for name in table.models for depth in sorted({report.at, deepest})]
    lines = [["m", "v", *(f"{name} ms at {depth}" for name, depth in columns)]]
    for width in table.models[TARGET].widths:
        cells = (_MS * table.seconds(name, width=width, depth=depth) for name, depth in columns)
        v = f"{table.v(width, depth=report.at):.2f}"
        lines.append([str(width), v, *(f"{cell:.2f}" for cell in cells)])
    return lines


def _break_even_lines(report: CostReport) -> list[list[str]]:
    lines = [["k", *map(str, KS)]]
    for drafter in report.table.drafters:
        found = report.break_even(drafter).values()
        lines.append([drafter, *("never" if a is None else f"{a:.2f}" for a in found)])
    return lines


def _best_lines(report: CostReport) -> list[list[str]]:
    lines = [["acceptance", *(f"{acceptance:g}" for acceptance in report.acceptances)]]
    for drafter in report.table.drafters:
        best = report.best_k(drafter).values()
        lines.append([drafter, *(f"{k} ({speedup:.2f}x)" for k, speedup in best)])
    return lines


def _align(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
        yield "  ".join(["", line[0].ljust(widths[0]), *cells])
