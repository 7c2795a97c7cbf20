"""A result as one HTML page: no script, no outside file, readable on a phone.

In: a record and its summary. Out: HTML text; `sections.py` draws what stands on it.
"""

from html import escape
from pathlib import Path

from .record import Record
from .sections import (
    draw_bursts,
    draw_gaps,
    draw_lengths,
    draw_memory,
    draw_rates,
    draw_ratios,
    draw_sweeps,
    draw_widths,
    make_table,
)
from .summary import Summary
from .table import find_warnings, header_lines

STYLE = Path(__file__).with_name("page.css")


def render_page(record: Record, summary: Summary) -> str:
    """Return the page."""
    sections = [
        draw_rates(summary),
        draw_ratios(summary),
        draw_gaps(summary),
        draw_lengths(record),
        *draw_sweeps(summary),
        draw_widths(summary),
        draw_bursts(record),
        draw_memory(summary),
    ]
    warnings = "".join(f"<li>{escape(line)}</li>" for line in find_warnings(record, summary))
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<title>forerun: benchmark</title>",
            f"<style>\n{STYLE.read_text(encoding='utf-8')}</style>\n</head>\n<body>",
            "<h1>forerun: benchmark</h1>",
            f"<p>{escape(name_run(record))}</p>",
            f'<ul class="warnings">{warnings}</ul>' if warnings else "",
            *(section for section in sections if section),
            "<section>\n<h2>How it was measured</h2>",
            make_table([("what", "value"), *header_lines(record)], kind="header"),
            "</section>",
            "</body>\n</html>\n",
        ]
    )


def name_run(record: Record) -> str:
    """Return one line on what was measured and where."""
    bundle, machine = record.header["bundle"], record.header["machine"]
    models = "; ".join(f"{name}: {what}" for name, what in bundle.items() if name != "manifest")
    return (
        f"{models}. {record.header['settings']['threads']} threads on {machine['processor']} with "
        f"{machine['memory']}; {len(record.prompts)} prompts, greedy."
    )
