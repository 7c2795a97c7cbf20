"""The verdicts of a sweep as a page of Markdown.

In: verdicts. Out: counts, the families that are right with their largest error, and those that are
refused with the exporter's sentence.
"""

from collections.abc import Sequence

from .record import Verdict

_TITLE = """# Families

Written by `python -m tools.families --all --json FILE --page models/families.md`: a tiny random
model of every type that transformers calls a causal language model, exported in float32 and
compared with PyTorch over passes of many widths, across sliding windows and after rollbacks. The
error is the largest one, relative to the range of the logits.
"""


def render_page(verdicts: Sequence[Verdict]) -> str:
    """Return the page."""
    flavours = sorted({verdict.flavour for verdict in verdicts})
    parts = [_TITLE]
    for flavour in flavours:
        found = [verdict for verdict in verdicts if verdict.flavour == flavour]
        parts.append(_render_flavour(flavour, found))
    return "\n".join(parts)


def _render_flavour(flavour: str, verdicts: Sequence[Verdict]) -> str:
    right = [v for v in verdicts if v.verdict == "ok"]
    others = [v for v in verdicts if v.verdict != "ok"]
    lines = [
        f"## {flavour}: {len(right)} of {len(verdicts)} types are right",
        "",
        ", ".join(f"{v.family} ({v.error:.0e})" for v in right),
        "",
        "| not exported | why |",
        "|---|---|",
        *(f"| {v.family} | {_cell(v)} |" for v in others),
        "",
    ]
    return "\n".join(lines)


def _cell(verdict: Verdict) -> str:
    text = verdict.reason.replace("|", "\\|")
    return f"**failed**: {text}" if verdict.verdict == "failed" else text
