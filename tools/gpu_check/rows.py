"""What a check found: one row of the table, and the table.

In: rows. Out: lines for people, and plain data. A row says which check, of what, what came out, and
a verdict: `ok`, `missed` (it works, but not as fast as hoped), `failed`, or `not here` (this
machine cannot tell).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runtime.errors import ForerunError, ProviderError

VERDICTS = ("ok", "missed", "failed", "not here")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One finding; `figures` are the numbers behind `found`, by name."""

    check: str
    subject: str
    found: str
    verdict: str = "ok"
    figures: Mapping[str, float] = field(default_factory=dict)


def judge(*, good: bool, otherwise: str = "missed") -> str:
    """Return `ok`, or the verdict for what is not good."""
    return "ok" if good else otherwise


def render_rows(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table as Markdown, and then how many rows had which verdict."""
    yield "| check | of | found | verdict |"
    yield "|---|---|---|---|"
    for row in rows:
        yield f"| {row.check} | {row.subject} | {row.found} | {row.verdict} |"
    counts = {name: sum(row.verdict == name for row in rows) for name in VERDICTS}
    yield ""
    yield ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def guarded(check: str, subject: str, find: Callable[[], Iterator[Row]]) -> Iterator[Row]:
    """Yield a check's rows; what goes wrong becomes a row, so that the others still come."""
    try:
        yield from find()
    except ProviderError as error:
        yield Row(check=check, subject=subject, found=str(error), verdict="not here")
    except ForerunError as error:
        yield Row(check=check, subject=subject, found=str(error), verdict="failed")
    except Exception as error:  # libraries raise what they like; the next check is not to blame
        found = f"{type(error).__name__}: {' '.join(str(error).split())}"
        yield Row(check=check, subject=subject, found=found, verdict="failed")
