"""A result as text for a terminal: header, rows, ratios, sweeps, and what to beware of."""

from collections.abc import Iterable, Mapping, Sequence

from .figures import Spread
from .ratios import Ratio
from .record import Record
from .rows import PLAIN
from .summary import Point, RowSummary, Summary, Width

MEGABYTE = 1e6
_SLACK_CORES = 0.2
_IDLE_SHARE = 0.5


def render_result(record: Record, summary: Summary) -> str:
    """Return the whole report."""
    parts = [
        "\n".join(f"{name}: {value}" for name, value in header_lines(record)),
        align(row_lines(summary.rows)),
        align(ratio_lines(summary.ratios)),
        align(category_lines(summary.categories)),
        align(point_lines(summary.points)),
        align(width_lines(summary.widths)),
        "\n".join(find_warnings(record, summary)),
    ]
    return "\n\n".join(part for part in parts if part)


def header_lines(record: Record) -> list[tuple[str, str]]:
    """Return what was measured, on what and by which method, as names and texts."""
    lines = []
    for name, value in record.header.items():
        if isinstance(value, Mapping):
            value = "; ".join(f"{key} {item}" for key, item in value.items())
        lines.append((name, str(value)))
    for name, hello in record.workers.items():
        words = [f"{key} {item}" for key, item in (*hello.versions.items(), *hello.details.items())]
        words += [f"{hello.threads} threads", f"loaded in {hello.load_s:.1f} s"]
        lines.append((name, ", ".join(words)))
    return lines


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


def row_lines(rows: Iterable[RowSummary]) -> list[list[str]]:
    """Return the table of rows; those that did not run say so."""
    lines = [
        [
            *("row", "tokens", "tokens/s", "ms/token", "first token ms", "first text ms"),
            *("gap p50/p95/p99 ms", "tokens/pass", "accepted", "peak MB", "threads", "cores"),
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
                number(row.first_text_s.median if row.first_text_s else None, 0, scale=1e3),
                gaps,
                number(row.mean_accepted_length, 2),
                number(row.acceptance_rate, 3),
                number(row.peak_bytes, 0, scale=1 / MEGABYTE),
                number(row.busy_threads, 0),
                number(row.busy_cores, 1),
            ]
        )
    return lines


def ratio_lines(ratios: Iterable[Ratio]) -> list[list[str]]:
    """Return the table of ratios."""
    lines = [["tokens/s of", "over", "total [min-max]", "mean (95 %)", "prompts", "compared by"]]
    for ratio in ratios:
        parted = f" ({ratio.parted} with other ids)" if ratio.parted else ""
        lines.append(
            [
                ratio.row,
                ratio.over,
                spread(ratio.total, 3),
                f"{ratio.mean:.3f} ({ratio.low:.3f}-{ratio.high:.3f})",
                f"{ratio.prompts}{parted}",
                ratio.basis,
            ]
        )
    return lines


def brief_lines(summary: Summary) -> list[list[str]]:
    """Return the table of rows, cut to what most people ask: how fast, how soon, how large."""
    over_plain = {ratio.row: ratio for ratio in summary.ratios if ratio.over == PLAIN}
    lines = [["row", "tokens/s", "over plain", "first token ms", "peak MB"]]
    for row in summary.rows:
        ratio = over_plain.get(row.name)
        lines.append(
            [
                row.name,
                number(row.tokens_per_s.median if row.tokens_per_s else None, 1),
                "1" if row.name == PLAIN else number(ratio.total.median if ratio else None, 2),
                number(row.first_token_s.median if row.first_token_s else None, 0, scale=1e3),
                number(row.peak_bytes, 0, scale=1 / MEGABYTE),
            ]
        )
    return lines


def category_lines(categories: Mapping[str, Sequence[Ratio]]) -> list[list[str]]:
    """Return the table of speed-ups over plain decoding, a row's own in each category."""
    if len(categories) < 2:
        return []
    # A row whose ids part from plain decoding's in all of a category has no ratio there.
    rows = list(dict.fromkeys(ratio.row for ratios in categories.values() for ratio in ratios))
    lines = [["over plain, by category", *rows]]
    for category, ratios in categories.items():
        found = {ratio.row: number(ratio.total.median, 2) for ratio in ratios}
        lines.append([category, *(found.get(row, "n/a") for row in rows)])
    return lines


def point_lines(points: Iterable[Point]) -> list[list[str]]:
    """Return the table of sweeps."""
    lines = [["sweep", "row", "tokens/s", "all tokens/s", "first token ms", "answer ms"]]
    lines += [
        [
            f"{point.axis} {point.value}",
            point.row,
            spread(point.tokens_per_s, 1),
            spread(point.all_tokens_per_s, 1),
            spread(point.first_token_s, 0, scale=1e3),
            spread(point.answer_s, 0, scale=1e3),
        ]
        for point in points
    ]
    return lines


def width_lines(widths: Iterable[Width]) -> list[list[str]]:
    """Return v(m) of every model."""
    lines = [["pass of", "tokens m", "ms [min-max]", "v(m)"]]
    lines += [
        [
            width.model,
            str(width.tokens),
            spread(width.seconds, 2, scale=1e3),
            number(width.ratio, 2),
        ]
        for width in widths
    ]
    return lines


def find_warnings(record: Record, summary: Summary) -> list[str]:
    """Return what a reader has to know before trusting the figures."""
    lines = [f"{name}: {reason}" for name, reason in record.failed.items()]
    machine = record.header["machine"]
    load, cores = float(machine.get("load before", 0)), int(machine.get("cores", 1))
    if load > _IDLE_SHARE * cores:
        lines.append(
            f"the machine was not idle (load {load:.2f} on {cores} cores before the run): the "
            "figures say little"
        )
    for row in summary.rows:
        hello = record.workers.get(row.worker)
        if hello is not None:
            lines += _check_threads(row, hello.threads)
    own = {row.name for row in record.rows if row.worker == "forerun"}
    lines += [
        f"NOT the same tokens: {name} and plain part on {', '.join(prompts)}; left out of the ratio"
        for name, prompts in summary.parted.items()
        if prompts and name in own
    ]
    if not record.complete:
        lines.append("not complete: these are the figures of what was measured")
    return lines


def _check_threads(row: RowSummary, wanted: int) -> list[str]:
    """Return what is wrong with the threads that a row really used."""
    told = f"{row.name} was told to use {wanted} threads"
    if row.busy_threads is not None and row.busy_threads < wanted:
        return [f"{told}, but {row.busy_threads:g} did the work"]
    # Sessions that take turns have threads of their own: more of them is no more work at a time.
    if row.busy_cores is not None and row.busy_cores > wanted + _SLACK_CORES:
        return [f"{told}, but kept {row.busy_cores:.1f} cores busy"]
    return []
