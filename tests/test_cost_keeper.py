"""An engine's cost table: kept for life, and forgotten on the disk when passes contradict it."""

import gc
import logging
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.costs import CostTable, Line
from runtime.kept_costs import keep_costs, read_costs
from runtime.speculate import Verdict

ASKED = {"max_tokens": 150, "ignore_eos": True}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))


def scaled(table: CostTable, factor: float) -> CostTable:
    def times(line: Line) -> Line:
        return Line(tuple((x, factor * y) for x, y in line.points))

    models = {
        name: replace(costs, by_width=times(costs.by_width), plain=times(costs.plain), added=())
        for name, costs in table.models.items()
    }
    return replace(table, models=models)


@pytest.mark.parametrize("stages", [["suffix"], ["draft"]])
def test_a_table_that_passes_contradict_is_forgotten_once(
    tmp_path: Path, stages: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    bundle = make_bundle(tmp_path / "bundle", context=256)
    caplog.set_level(logging.INFO)
    with Engine.open(bundle, threads=1) as engine:
        wrong = scaled(engine.costs(), 1e-3)
        keep_costs(engine.cost_key, wrong)
    with Engine.open(bundle, threads=1) as engine:
        first = engine.complete([0, 1, 2], stages=stages, **ASKED)
        assert first.stats.target_passes > 96
        assert read_costs(engine.cost_key) is None
        assert engine.costs() == wrong  # for life: the same request chooses the same way
        keep_costs(engine.cost_key, wrong)
        assert engine.complete([0, 1, 2], stages=stages, **ASKED).token_ids == first.token_ids
        assert read_costs(engine.cost_key) == wrong
    told = [record.getMessage() for record in caplog.records]
    assert sum("measured anew at the next start" in line for line in told) == 1


def test_a_table_that_holds_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.drift.OFF", (0.0, 1e9))
    bundle = make_bundle(tmp_path / "bundle", context=256)
    with Engine.open(bundle, threads=1) as engine:
        table = engine.costs()
        engine.complete([0, 1, 2], **ASKED)
        assert read_costs(engine.cost_key) == table


def test_every_pass_is_told_with_what_it_fed(tmp_path: Path) -> None:
    fed: dict[str, list[tuple[int, int]]] = {}

    def watch(verdict: Verdict) -> None:
        fed.setdefault(verdict.level, []).append((verdict.depth, verdict.width))
        assert 0 < verdict.verify_seconds < verdict.seconds

    with Engine.open(make_bundle(tmp_path / "bundle", distance=0.0), threads=1) as engine:
        engine.complete([0, 1, 2], max_tokens=6, ignore_eos=True, k=2, watch=watch)
        first, fed = fed, {}
        engine.complete([0, 1, 2], max_tokens=1, k=2, watch=watch)
    # The twin's proposals all stay; its pass after such a round feeds the bonus as well.
    assert first["target"] == [(0, 3), (3, 3), (6, 2)]
    assert first["draft"][:3] == [(0, 4), (4, 1), (5, 2)]
    assert fed == {"target": [(2, 1)]}  # the prompt is known, but a law needs a token that is fed


def test_a_closed_engine_lets_its_models_go(tmp_path: Path) -> None:
    engine = Engine.open(make_bundle(tmp_path / "bundle"), threads=1)
    engine.costs()
    engine.complete([0, 1, 2], max_tokens=4)
    models = [weakref.ref(model) for model in (engine.target, *engine.drafts.values())]
    engine.close()
    gc.collect()
    assert [model() for model in models] == [None, None]
