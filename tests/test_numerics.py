"""Which widths passes have: pairs of rows where a bundle's kernels ask for it, and only there."""

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.manifest import MANIFEST_NAME


def open_with(folder: Path, block_error: float) -> Engine:
    bundle = make_bundle(folder)
    path = bundle / MANIFEST_NAME
    raw = json.loads(path.read_text(encoding="utf-8"))
    for model in raw["models"]:
        model["parity"] = {"block_error": block_error}
    path.write_text(json.dumps(raw), encoding="utf-8")
    return Engine.open(bundle, threads=1)


def widths(engine: Engine, **options: Any) -> set[int]:
    """Return the parities of the widths, in tokens, of the passes that an answer takes."""
    for model in (engine.target, *engine.drafts.values()):
        model.steps.clear()
    engine.complete("abc", max_tokens=7, ignore_eos=True, **options)
    models = (engine.target, *engine.drafts.values())
    return {count % 2 for model in models for count, _ in model.steps}


@pytest.mark.parametrize(
    ("block_error", "options", "has_odd"),
    [
        (0.01, {"k": 2}, True),
        (0.01, {"k": 2, "numerics": "fixed-width"}, False),
        (0.01, {"k": 2, "coupled": True}, False),
        (0.01, {"stages": ["suffix"], "k": 4, "numerics": "fixed-width"}, False),
        (0.01, {"speculate": "off"}, True),
        (0.01, {"speculate": "off", "numerics": "fixed-width"}, False),
        (0.0, {"k": 2}, True),
        (0.0, {"speculate": "off", "numerics": "fixed-width"}, True),
    ],
)
def test_passes_run_in_pairs_where_a_single_row_is_rounded_apart(
    tmp_path: Path, block_error: float, options: Any, has_odd: bool
) -> None:
    with open_with(tmp_path / "bundle", block_error) as engine:
        assert (1 in widths(engine, **options)) == has_odd


def test_an_answer_does_not_depend_on_the_widths_of_the_one_before(tmp_path: Path) -> None:
    with open_with(tmp_path / "bundle", 0.01) as engine:
        engine.complete("abcab", max_tokens=5, speculate="off")
        fed = []
        score = engine.target.score
        engine.target.score = lambda tokens, rows: (  # type: ignore[method-assign]
            fed.append(engine.target.length) or score(tokens, rows)
        )
        engine.complete("abcab", max_tokens=5, k=2, numerics="fixed-width")
        assert fed[0] == 0
