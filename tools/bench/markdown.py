"""A result as Markdown for a README: what was measured on, the rows, and the ratios.

Made by `python -m tools.bench report RESULT.json --markdown`, so that no figure is typed by hand.
"""

from collections.abc import Sequence

from .record import Record
from .summary import Summary
from .table import brief_lines, find_warnings, header_lines, ratio_lines, row_lines


def render_markdown(record: Record, summary: Summary) -> str:
    """Return the result's tables in Markdown."""
    header = "\n".join(f"- **{name}**: {_escape(value)}" for name, value in header_lines(record))
    notes = "\n".join(f"- {_escape(line)}" for line in find_warnings(record, summary))
    tables = [make_table(row_lines(summary.rows)), make_table(ratio_lines(summary.ratios))]
    return "\n\n".join(part for part in (*tables, header, notes) if part)


def render_brief(record: Record, summary: Summary) -> str:
    """Return one Markdown table for a README, and below it what it was measured on and how."""
    machine, settings, bundle = (record.header[key] for key in ("machine", "settings", "bundle"))
    versions = {
        f"{name} {version}"
        for hello in record.workers.values()
        for name, version in hello.versions.items()
    }
    asked = {"prompts": record.header["prompts"]["number"], **settings}
    lines = [
        f"{bundle['target']}; {machine['processor']}; greedy; "
        f"{', '.join(f'{name} {value}' for name, value in asked.items())}; "
        f"{', '.join(sorted(versions))}.",
        f"`{record.header['command']}`",
        *find_warnings(record, summary),
    ]
    return "\n\n".join(
        [make_table(brief_lines(summary)), *(line.replace("\n", " ") for line in lines)]
    )


def make_table(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as a Markdown table; empty without any line below the first."""
    if len(lines) < 2:
        return ""
    rule = ["---", *["--:"] * (len(lines[0]) - 1)]
    return "\n".join(
        f"| {' | '.join(map(_escape, line))} |" for line in (lines[0], rule, *lines[1:])
    )


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
