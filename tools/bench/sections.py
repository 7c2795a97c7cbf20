"""The sections of a page: each a plot above the table of its figures.

In: a record and its summary. Out: HTML of one section each, empty where there is nothing to show.
"""

from collections.abc import Iterable, Sequence
from html import escape

from .figures import Spread, read_answer
from .plots import Dot, draw_bars, draw_dots, draw_lines
from .ratios import Ratio
from .record import Record
from .rows import RAW
from .summary import RowSummary, Summary
from .table import MEGABYTE, number, point_lines, ratio_lines, row_lines, width_lines

_AXES = {
    "prompt": "tokens of the prompt",
    "output": "tokens of the answer",
    "concurrency": "requests at once on one engine",
    "threads": "threads",
}


def make_section(title: str, words: str, plot: str, table: str) -> str:
    """Return a plot with its explanation above and its table below."""
    return (
        f"<section>\n<h2>{escape(title)}</h2>\n<p>{escape(words)}</p>\n"
        f"<figure>{plot}</figure>\n{table}\n</section>"
    )


def make_table(lines: Sequence[Sequence[str]], *, kind: str = "figures") -> str:
    """Return lines of cells as a table, the first line as its head; it scrolls when too wide."""
    head, *rest = lines
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>\n" for line in rest
    )
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{cells}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def draw_rates(summary: Summary) -> str:
    """Return the section of all rows."""
    dots = [
        make_dot(row.name, row.tokens_per_s, i, digits=1)
        for i, row in enumerate(summary.rows)
        if row.tokens_per_s
    ]
    if not dots:
        return ""
    return make_section(
        "Decoding rate",
        "All decoded tokens over all decoding time: the median of the repeats, and what they lie "
        "between. The time to the first token is apart.",
        draw_dots({"": dots}, title="Tokens per second of each row", unit="tokens per second"),
        make_table(row_lines(summary.rows)),
    )


def draw_ratios(summary: Summary) -> str:
    """Return the section of speed-ups over plain decoding, in all and by category."""
    groups = {
        "all prompts": [ratio for ratio in summary.ratios if ratio.over == "plain"],
        **(summary.categories if len(summary.categories) > 1 else {}),
    }
    names = [row.name for row in summary.rows]
    drawn = {
        heading: [make_ratio_dot(ratio, names) for ratio in ratios if ratio.row != RAW]
        for heading, ratios in groups.items()
    }
    if not any(drawn.values()):
        return ""
    lines = ratio_lines(summary.ratios)
    for category, ratios in groups.items():
        if category != "all prompts":
            lines += [[f"{line[0]}, {category}", *line[1:]] for line in ratio_lines(ratios)[1:]]
    return make_section(
        "Speed over plain decoding, by kind of text",
        "Geometric mean over the prompts with its 95 % interval. Right of the line is faster than "
        "this engine's own plain decoding.",
        draw_dots(drawn, title="Speed-up by category", unit="times plain decoding", mark=1.0),
        make_table(lines),
    )


def draw_gaps(summary: Summary) -> str:
    """Return the section of times between chunks."""
    shown = [row for row in summary.rows if row.gaps_s]
    if not shown:
        return ""
    dots = [
        Dot(
            label=row.name,
            value=row.gaps_s["p50"] * 1e3,
            low=row.gaps_s["p50"] * 1e3,
            high=row.gaps_s["p99"] * 1e3,
            text=" / ".join(number(gap, 1, scale=1e3) for gap in row.gaps_s.values()),
            colour=summary.rows.index(row),
        )
        for row in shown
    ]
    lines = [
        ["row", *(f"{name} ms" for name in shown[0].gaps_s)],
        *([row.name, *(number(g, 2, scale=1e3) for g in row.gaps_s.values())] for row in shown),
    ]
    return make_section(
        "Time between chunks",
        "What a reader waits between two pieces of the answer: the dot is the median, the line "
        "ends at the 99th percentile (p50 / p95 / p99). A chunk may hold several tokens.",
        draw_dots({"": dots}, title="Time between chunks of each row", unit="milliseconds"),
        make_table(lines),
    )


def draw_lengths(record: Record) -> str:
    """Return the section of decoding rate by prompt length, from the run's own prompts."""
    lengths = {prompt.name: len(prompt.ids) for prompt in record.prompts}
    series: dict[str, list[tuple[float, float]]] = {}
    for sample in record.main().samples:
        token_s = read_answer(sample.answer).token_s
        if token_s and sample.repeat == 0 and sample.row != RAW:
            series.setdefault(sample.row, []).append((lengths[sample.prompt], 1 / token_s))
    if not series:
        return ""
    lines = [["row", "tokens of the prompt", "tokens/s"]]
    lines += [
        [row, f"{length:.0f}", number(rate, 1)]
        for row, points in series.items()
        for length, rate in sorted(points)
    ]
    return make_section(
        "Decoding rate by length of the prompt",
        "One point a prompt, from the first repeat.",
        draw_lines(
            series,
            title="Tokens per second by length of the prompt",
            x_unit="tokens of the prompt",
            y_unit="tokens per second",
            colours={row.name: i for i, row in enumerate(record.rows)},
            is_joined=False,
        ),
        make_table(lines),
    )


def draw_sweeps(summary: Summary) -> Iterable[str]:
    """Return a section for each axis of the sweeps."""
    for axis, unit in _AXES.items():
        points = [point for point in summary.points if point.axis == axis]
        if not points:
            continue
        series: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            under_load = axis == "concurrency"
            rate = point.all_tokens_per_s if under_load else point.tokens_per_s
            if rate:
                series.setdefault(point.row, []).append((point.value, rate.median))
        yield make_section(
            f"Sweep: {unit}",
            "All requests together, prompts included."
            if axis == "concurrency"
            else "Decoding alone; the time to the first token stands in the table.",
            draw_lines(
                series,
                title=f"Tokens per second by {unit}",
                x_unit=unit,
                y_unit="tokens per second",
                colours={row.name: i for i, row in enumerate(summary.rows)},
            ),
            make_table(point_lines(points)),
        )


def draw_widths(summary: Summary) -> str:
    """Return the section of v(m)."""
    if not summary.widths:
        return ""
    series: dict[str, list[tuple[float, float]]] = {}
    for width in summary.widths:
        series.setdefault(width.model, []).append((width.tokens, width.ratio))
    return make_section(
        "v(m): the cost of a wider pass",
        "The time of one pass over m tokens in passes over one token. Checking drafted tokens pays "
        "while this grows more slowly than the tokens that are accepted.",
        draw_lines(series, title="v(m) of each model", x_unit="tokens m of a pass", y_unit="v(m)"),
        make_table(width_lines(summary.widths)),
    )


def draw_bursts(record: Record) -> str:
    """Return the section of tokens per chunk: how the rounds of speculation came out."""
    counts: dict[str, dict[int, int]] = {}
    for sample in record.main().samples:
        for chunk in sample.answer.chunks[1:]:
            by_size = counts.setdefault(sample.row, {})
            by_size[len(chunk.token_ids)] = by_size.get(len(chunk.token_ids), 0) + 1
    speculative = {row: by_size for row, by_size in counts.items() if max(by_size) > 1}
    if not speculative:
        return ""
    sizes = sorted({size for by_size in speculative.values() for size in by_size})
    shares = {
        row: {_name_tokens(s): by_size.get(s, 0) / sum(by_size.values()) * 100 for s in sizes}
        for row, by_size in speculative.items()
    }
    means = {
        row: f"{sum(s * n for s, n in by_size.items()) / sum(by_size.values()):.2f} on average"
        for row, by_size in speculative.items()
    }
    lines = [["row", *(_name_tokens(size) for size in sizes)]]
    lines += [[row, *(f"{share:.1f} %" for share in part.values())] for row, part in shares.items()]
    return make_section(
        "Tokens of a round",
        "How many tokens the rounds of speculative decoding brought, the first chunk left out.",
        draw_bars(shares, title="Tokens of a round", unit="percent of the rounds", texts=means),
        make_table(lines),
    )


def draw_memory(summary: Summary) -> str:
    """Return the section of memory: one bar a process, the known parts by name."""
    bars: dict[str, dict[str, float]] = {}
    lines = [["process", "part", "MB"]]
    for row in {row.worker: row for row in summary.rows if row.peak_bytes}.values():
        assert row.peak_bytes is not None
        parts = {name: size / MEGABYTE for name, size in _name_parts(row).items()}
        known = sum(parts.values())
        rest = max(0.0, row.peak_bytes / MEGABYTE - known)
        bars[row.worker] = {**parts, "everything else": rest}
        lines += [[row.worker, name, number(size, 0)] for name, size in row_parts(row)]
    if not bars:
        return ""
    peaks = {line[0]: f"{line[2]} MB" for line in lines[1:] if line[1] == "peak, resident"}
    return make_section(
        "Memory",
        "Greatest resident memory of each process. Weights are their size on disk or, for PyTorch, "
        "in memory; an engine may keep some of them repacked, or not read them all.",
        draw_bars(bars, title="Memory of each process", unit="megabytes", texts=peaks),
        make_table(lines),
    )


def row_parts(row: RowSummary) -> list[tuple[str, float]]:
    """Return the peak of a row's process and its named parts, in megabytes."""
    peak = (row.peak_bytes or 0) / MEGABYTE
    return [
        ("peak, resident", peak),
        *((name, size / MEGABYTE) for name, size in row.memory.items()),
    ]


def make_dot(name: str, value: Spread, colour: int, *, digits: int) -> Dot:
    """Return a dot at a median, with its spread."""
    return Dot(
        label=name,
        value=value.median,
        low=value.low,
        high=value.high,
        text=number(value.median, digits),
        colour=colour,
    )


def make_ratio_dot(ratio: Ratio, names: Sequence[str]) -> Dot:
    """Return a dot at a ratio's mean, with its interval."""
    return Dot(
        label=ratio.row,
        value=ratio.mean,
        low=ratio.low,
        high=ratio.high,
        text=f"{ratio.mean:.2f} ({ratio.low:.2f}-{ratio.high:.2f})",
        colour=names.index(ratio.row),
    )


def _name_parts(row: RowSummary) -> dict[str, int]:
    """Return weights and caches, each over all models."""
    parts: dict[str, int] = {}
    for name, size in row.memory.items():
        kind = "caches" if name.endswith("cache") else "weights"
        parts[kind] = parts.get(kind, 0) + size
    return parts


def _name_tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"
