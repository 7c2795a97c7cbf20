"""A cost table as a picture: v(m), and the acceptance that drafting k tokens needs.

In: a report. Out: a file in the format of its suffix. The only user of matplotlib, which is
not needed otherwise.
"""

from pathlib import Path
from typing import Any

from .cost_report import CostReport
from .costs import TARGET
from .errors import RequestError

SUFFIXES = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Refuse what could not be drawn, before anything is measured.

    Raises:
        RequestError: the suffix names no known format, there is no such folder, or matplotlib is
            not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise RequestError(f"--plot must name a file in {', '.join(SUFFIXES)}, not {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise RequestError(f"--plot {path}: the folder does not exist; make it first")
    _figure_class()


def draw_costs(report: CostReport, path: Path) -> None:
    """Draw the report to `path`.

    Raises:
        RequestError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    figure = _figure_class()(figsize=(10, 4.2), layout="constrained")
    passes, gains = figure.subplots(1, 2)
    table = report.table
    plain = table.plain_seconds(report.at)
    for name, costs in table.models.items():
        ratios = [table.seconds(name, width=m, depth=report.at) / plain for m in costs.widths]
        passes.plot(costs.widths, ratios, marker=".", label="v(m)" if name == TARGET else name)
    passes.set(
        xlabel="tokens m of a pass", ylabel=f"plain steps of {1e3 * plain:.1f} ms", ylim=(0, None)
    )
    for drafter in table.drafters:
        points = [(k, a) for k, a in report.break_even(drafter).items() if a is not None]
        gains.plot([k for k, _ in points], [a for _, a in points], marker="o", label=drafter)
    gains.set(xlabel="drafted tokens k", ylabel="acceptance that breaks even", ylim=(0, 1))
    for axes in (passes, gains):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"{report.key.machine}, {report.at} tokens of cache, {report.mode}")
    figure.savefig(path)


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise RequestError("--plot needs matplotlib: type  pip install matplotlib") from None
    return Figure
