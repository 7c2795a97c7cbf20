"""Cost tables kept in the user's cache folder, one file for each bundle, machine and setting.

In: the opened models and what they were opened with. Out: the table that was kept, or a fresh one
that is kept now, unless the machine was far too busy. A file that is damaged or of another format
is measured anew, never an error.
"""

import hashlib
import json
import logging
import math
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from .bundle import Bundle
from .costs import MODES, QUIET, TARGET, CostTable, HostCosts, Line, PassCosts
from .manifest import dump_manifest
from .measure import COPIERS, measure_costs
from .providers import Provider, Threads, count_threads
from .session import onnxruntime_version
from .storage import cache_folder, write_whole
from .tune import Tunable, choose_threads, list_settings

FORMAT = 2
KEPT_FROM = QUIET / 2  # of a core; with less, times say little about this machine
_SHORTEST_S = 1e-9  # of a pass
_DAMAGES = (
    OSError,
    ArithmeticError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CostKey:
    """What a table holds for: another value of any field has a table of its own."""

    bundle: str  # SHA-256 of the manifest, which lists the hashes of all files
    provider: str
    device_id: int
    threads: int  # 0: the fastest setting is part of what is measured
    onnxruntime: str
    numpy: str
    machine: str
    cores: int
    format: int = FORMAT

    @property
    def path(self) -> Path:
        """Where the table is kept."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return cache_folder() / "costs" / f"{digest[:32]}.json"


def make_key(bundle: Bundle, *, provider: Provider, threads: int | None) -> CostKey:
    """Return the key of a bundle on this machine.

    Args:
        bundle: what runs.
        provider: where it runs.
        threads: how many compute threads were asked for; `None` leaves that to measuring.
    """
    content = dump_manifest(bundle.manifest).encode("utf-8")
    return CostKey(
        bundle=hashlib.sha256(content).hexdigest(),
        provider=provider.name,
        device_id=provider.device_id,
        threads=threads or 0,
        onnxruntime=onnxruntime_version(),
        numpy=np.__version__,
        machine=name_processor(),
        cores=count_threads(None),
    )


def obtain_costs(
    key: CostKey,
    target: Tunable,
    drafts: Mapping[str, Tunable],
    *,
    refresh: bool = False,
    on_pass: Callable[[], None] = lambda: None,
) -> CostTable:
    """Return the kept table, or measure one and keep it.

    Measuring empties the models' caches, and opens their sessions anew with the fastest threads
    unless a number of threads was asked for. Where the table cannot be kept, a warning is logged;
    a table from a far too busy machine serves this process only.

    Args:
        key: what the table is for.
        target: the target model.
        drafts: the draft models by name, nearest to the target first.
        refresh: measure even if a table is kept.
        on_pass: called after every pass while measuring.
    """
    table = None if refresh else read_costs(key)
    if table is None or not {TARGET, *drafts} <= set(table.models):
        _log.info("measuring what passes cost here: a few seconds, once for this bundle")
        settings: tuple[tuple[Threads, float], ...] = ((target.threads, 0.0),)
        if not key.threads and key.provider == "cpu":
            tried = list_settings(key.cores)
            settings = choose_threads(target, drafts, tried, on_pass=on_pass)
        table = replace(measure_costs(target, drafts, on_pass=on_pass), settings=settings)
        if _was_disturbed(key, table):
            _log.info(
                "the machine was busy, the main thread had a core for %.0f %% of its time: the "
                "cost table is not kept, and passes are measured again at the next start",
                100 * table.share,
            )
        else:
            keep_costs(key, table)
    return table


def _was_disturbed(key: CostKey, table: CostTable) -> bool:
    """Whether others had most of the main thread's time, which shows only where it spins."""
    return key.provider == "cpu" and table.threads.spins and table.share < KEPT_FROM


def read_costs(key: CostKey) -> CostTable | None:
    """Return the table kept for `key`, or `None` without one that can be read."""
    try:
        raw = json.loads(key.path.read_text(encoding="utf-8"))
        return _parse(raw["table"]) if raw["key"] == asdict(key) else None
    except _DAMAGES:
        return None


def keep_costs(key: CostKey, table: CostTable) -> None:
    """Write the table for `key`; where that fails, log one warning and go on."""
    content = {"key": asdict(key), "table": asdict(table)}
    try:
        write_whole(key.path, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        _log.warning(
            "the cost table cannot be kept (%s): it is measured again at the next start; "
            "set FORERUN_CACHE to a folder that can be written",
            error,
        )


def forget_costs(key: CostKey) -> None:
    """Let the table for `key` be measured anew at the next start: the machine contradicts it."""
    with suppress(OSError):
        key.path.unlink()


def name_processor() -> str:
    """Return the processor's model name, or its architecture where the system hides it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _parse(raw: Mapping[str, Any]) -> CostTable:
    """Return the table; raises one of the errors of a wrong value where it cannot be one."""
    models = {name: _parse_passes(passes) for name, passes in raw["models"].items()}
    copiers = {name: _least(0.0, seconds) for name, seconds in raw["copiers"].items()}
    settings = tuple(
        (
            Threads(count=_count(threads["count"]), spins=bool(threads["spins"])),
            _least(0.0, seconds),
        )
        for threads, seconds in raw["settings"]
    )
    _demand(settings)
    _demand({copier.name for copier in COPIERS} <= set(copiers))
    _demand(models[TARGET].plain.points)
    return CostTable(
        models=models,
        copiers=copiers,
        host={mode: HostCosts(**_parse_host(raw["host"][mode])) for mode in MODES},
        settings=settings,
        share=_least(0.0, raw["share"]),
    )


def _parse_passes(raw: Mapping[str, Any]) -> PassCosts:
    even_step = _count(raw["even_step"])
    by_width = _parse_line(raw["by_width"], least=_SHORTEST_S)
    added = tuple((_count(depth), _parse_line(line, least=0.0)) for depth, line in raw["added"])
    depths = [_count(raw["depth"]), *(depth for depth, _ in added)]
    _demand(even_step in {1, 2} and _ascends(depths))
    _demand(all(line.points for line in (by_width, *(line for _, line in added))))
    return PassCosts(
        even_step=even_step,
        depth=depths[0],
        by_width=by_width,
        added=added,
        plain=_parse_line(raw["plain"], least=_SHORTEST_S),
    )


def _parse_line(raw: Mapping[str, Any], *, least: float) -> Line:
    points = tuple((float(_count(x)), _least(least, y)) for x, y in raw["points"])
    _demand(_ascends([x for x, _ in points]))
    return Line(points)


def _parse_host(raw: Mapping[str, Any]) -> dict[str, float]:
    return {name: _least(0.0, seconds) for name, seconds in raw.items()}


def _ascends(numbers: Sequence[float]) -> bool:
    return all(a < b for a, b in pairwise(numbers))


def _count(value: Any) -> int:
    return int(_least(1.0, value))


def _least(least: float, value: Any) -> float:
    number = float(value)
    _demand(math.isfinite(number) and number >= least)
    return number


def _demand(holds: object) -> None:
    if not holds:
        raise ValueError
