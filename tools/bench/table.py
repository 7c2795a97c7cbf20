"""A result as text for a terminal: header, rows, ratios, and what to beware of."""

from collections.abc import Iterable, Sequence

from .figures import Spread
from .ratios import Ratio
from .result import Result, RowResult

_MEGABYTE = 1e6


def render_result(result: Result) -> str:
    """Return the whole report."""
    parts = [
        render_header(result),
        align(_row_lines(result.rows)),
        align(_ratio_lines(result.ratios)),
        *_warnings(result),
    ]
    return "\n\n".join(part for part in parts if part)


def render_header(result: Result) -> str:
    """Return what was measured, on what, by which method."""
    lines = []
    for name, value in result.header.items():
        if isinstance(value, dict):
            value = "; ".join(f"{key} {item}" for key, item in value.items())
        lines.append(f"{name}: {value}")
    for name, hello in result.workers.items():
        versions = ", ".join(f"{key} {item}" for key, item in hello.versions.items())
        details = "".join(f", {key} {item}" for key, item in hello.details.items())
        lines.append(f"{name}: {versions}, {hello.threads} threads{details}")
    return "\n".join(lines)


def align(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a table: the first column to the left, the others to the right."""
    if len(lines) < 2:
        return ""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float | None, digits: int, *, scale: float = 1.0) -> str:
    """Return `value * scale` with `digits` decimals, or n/a."""
    return "n/a" if value is None else f"{value * scale:.{digits}f}"


def spread(value: Spread | None, digits: int, *, scale: float = 1.0) -> str:
    """Return a median with what it lies between, such as `9.1 [8.7-9.3]`."""
    if value is None:
        return "n/a"
    low, high = number(value.low, digits, scale=scale), number(value.high, digits, scale=scale)
    return f"{number(value.median, digits, scale=scale)} [{low}-{high}]"


def _row_lines(rows: Iterable[RowResult]) -> list[list[str]]:
    lines = [
        [
            *("row", "tokens", "tokens/s", "ms/token", "first token ms"),
            *("gap p50/p95/p99 ms", "tokens/pass", "accepted", "peak MB", "threads"),
        ]
    ]
    for row in rows:
        if not row.answers:
            lines.append([row.name, "did not run", *[""] * (len(lines[0]) - 2)])
            continue
        gaps = "/".join(number(gap, 1, scale=1e3) for gap in row.gaps_s.values()) or "n/a"
        lines.append(
            [
                row.name,
                str(row.tokens),
                spread(row.tokens_per_s, 1),
                number(row.token_s.median if row.token_s else None, 2, scale=1e3),
                spread(row.first_token_s, 0, scale=1e3),
                gaps,
                number(row.mean_accepted_length, 2),
                number(row.acceptance_rate, 3),
                number(row.peak_bytes, 0, scale=1 / _MEGABYTE),
                number(row.busy_threads, 0),
            ]
        )
    return lines


def _ratio_lines(ratios: Iterable[Ratio]) -> list[list[str]]:
    lines = [["tokens/s over", "", "total [min-max]", "mean over prompts (95 %)", "prompts", "by"]]
    for ratio in ratios:
        parted = f" ({ratio.parted} with other ids)" if ratio.parted else ""
        lines.append(
            [
                ratio.row,
                f"/ {ratio.over}",
                spread(ratio.total, 3),
                f"{ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
                f"{ratio.prompts}{parted}",
                ratio.basis,
            ]
        )
    return lines


def _warnings(result: Result) -> Iterable[str]:
    lines = [f"{row.name}: {row.reason}" for row in result.rows if row.reason]
    lines += [
        f"{row.name} was told to use {hello.threads} threads, but {row.busy_threads:.0f} computed"
        for row in result.rows
        if (hello := result.workers.get(row.worker)) is not None
        and row.busy_threads is not None
        and row.busy_threads != hello.threads
    ]
    lines += [
        f"{pair}: other ids for {', '.join(names)}"
        for pair, names in result.parted.items()
        if names
    ]
    if not result.complete:
        lines.append("not complete: these are the figures of what was measured")
    return ["\n".join(lines)] if lines else []
