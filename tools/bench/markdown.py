"""A result as Markdown for a README: what was measured on, the rows, and the ratios.

Made by `python -m tools.bench report RESULT.json --markdown`, so that no figure is typed by hand.
"""

from collections.abc import Sequence

from .record import Record
from .summary import Summary
from .table import find_warnings, header_lines, ratio_lines, row_lines


def render_markdown(record: Record, summary: Summary) -> str:
    """Return the result's tables in Markdown."""
    header = "\n".join(f"- **{name}**: {_escape(value)}" for name, value in header_lines(record))
    notes = "\n".join(f"- {_escape(line)}" for line in find_warnings(record, summary))
    tables = [make_table(row_lines(summary.rows)), make_table(ratio_lines(summary.ratios))]
    return "\n\n".join(part for part in (*tables, header, notes) if part)


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
