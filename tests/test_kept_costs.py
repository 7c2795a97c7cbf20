"""Cost tables on disk: kept, found again, and never in the way."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_costs import FREE
from test_costs import make_table as make_bare_table
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.bundle import open_bundle
from runtime.costs import CostTable, HostCosts
from runtime.kept_costs import KEPT_FROM, CostKey, keep_costs, make_key, obtain_costs, read_costs
from runtime.providers import make_provider

KEY = CostKey(
    bundle="0" * 64,
    provider="cpu",
    device_id=0,
    threads=2,
    onnxruntime="1",
    numpy="2",
    machine="processor",
    cores=2,
)


def make_table(host: HostCosts = FREE) -> CostTable:
    return replace(make_bare_table(host=host), copiers={"suffix": 0.0, "lookup": 1e-5})


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))


def test_a_kept_table_is_read_as_it_was() -> None:
    assert read_costs(KEY) is None
    table = make_table(host=HostCosts(law=0.1, judge=1 / 3))
    keep_costs(KEY, table)
    assert read_costs(KEY) == table


def test_every_field_of_the_key_has_a_table_of_its_own() -> None:
    keep_costs(KEY, make_table())
    for field, value in vars(KEY).items():
        other = CostKey(**{**vars(KEY), field: value + (1 if isinstance(value, int) else "x")})
        assert other.path != KEY.path, field
        assert read_costs(other) is None
        other.path.write_bytes(KEY.path.read_bytes())  # a copied file tells what it is for
        assert read_costs(other) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"null",
        b'{"key": 1, "table": 2}',
        b"[" * 100_000,
    ],
    ids=["empty", "bytes", "list", "object", "null", "other", "deep"],
)
def test_a_damaged_file_counts_as_none(content: bytes) -> None:
    keep_costs(KEY, make_table())
    KEY.path.write_bytes(content)
    assert read_costs(KEY) is None


@pytest.mark.parametrize("name", ["models", "copiers", "host"])
def test_a_file_of_another_form_counts_as_none(name: str) -> None:
    keep_costs(KEY, make_table())
    raw = json.loads(KEY.path.read_text(encoding="utf-8"))
    raw["table"][name] = {"target": {"step": 1}}
    KEY.path.write_text(json.dumps(raw), encoding="utf-8")
    assert read_costs(KEY) is None


def _set(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(table: dict[str, Any]) -> None:
        at: Any = table
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return change


_TARGET = ("models", "target")


@pytest.mark.parametrize(
    "change",
    [
        _set("settings", value=[]),
        _set("settings", 0, 0, "count", value=0),
        _set("settings", 0, 0, "count", value=-2),
        _set("settings", 0, 1, value=-1.0),
        _set("share", value=float("nan")),
        _set("copiers", value={"suffix": 0.0}),
        _set("copiers", "lookup", value=-1e-6),
        _set("host", "greedy", "law", value=float("inf")),
        _set("host", "greedy", value={"law": 0.0}),
        _set("models", value={}),
        _set(*_TARGET, "even_step", value=0),
        _set(*_TARGET, "even_step", value=3),
        _set(*_TARGET, "depth", value=10**400),
        _set(*_TARGET, "depth", value=0),
        _set(*_TARGET, "by_width", "points", value=[]),
        _set(*_TARGET, "by_width", "points", value=[[2, 1.0], [2, 2.0]]),
        _set(*_TARGET, "by_width", "points", 0, 1, value=-0.01),
        _set(*_TARGET, "by_width", "points", 0, value=[]),
        _set(*_TARGET, "plain", "points", value=[]),
        _set(*_TARGET, "plain", "points", 0, 1, value=0.0),
        _set(*_TARGET, "added", 0, 0, value=128),
        _set(*_TARGET, "added", 0, 1, "points", value=[]),
        _set("models", "draft", "by_width", "points", 1, 1, value=float("nan")),
    ],
)
def test_a_table_that_none_can_be_counts_as_none(change: Callable[[dict[str, Any]], None]) -> None:
    keep_costs(KEY, make_table())
    raw = json.loads(KEY.path.read_text(encoding="utf-8"))
    change(raw["table"])
    KEY.path.write_text(json.dumps(raw), encoding="utf-8")
    assert read_costs(KEY) is None


@pytest.mark.parametrize(
    ("share", "provider", "is_kept"),
    [(0.95, "cpu", True), (0.2, "cpu", False), (0.2, "cuda", True)],
)
def test_a_table_of_a_far_too_busy_machine_serves_once(
    share: float,
    provider: str,
    is_kept: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("runtime.kept_costs.KEPT_FROM", KEPT_FROM)

    class Model:
        threads = make_table().threads

    measured = replace(make_table(), share=share)
    monkeypatch.setattr("runtime.kept_costs.measure_costs", lambda *_, **__: measured)
    key = replace(KEY, provider=provider)
    table = obtain_costs(key, Model(), {"draft": Model()})
    assert table == replace(measured, settings=((Model.threads, 0.0),))
    assert read_costs(key) == (table if is_kept else None)
    assert caplog.text.count("the cost table is not kept") == (0 if is_kept else 1)


def test_a_folder_that_cannot_be_written_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        keep_costs(KEY, make_table())
    assert len(caplog.records) == 1
    assert "set FORERUN_CACHE to a folder that can be written" in caplog.text


def test_the_engine_measures_once_and_again_when_asked(tmp_path: Path) -> None:
    passes: list[int] = []
    bundle = make_bundle(tmp_path / "bundle")
    with Engine.open(bundle) as engine:
        first = engine.costs(on_pass=lambda: passes.append(1))
        measured = len(passes)
        assert measured > 0
        assert engine.costs(on_pass=lambda: passes.append(1)) == first
    with Engine.open(bundle) as engine:
        assert engine.costs(on_pass=lambda: passes.append(1)) == first
        assert len(passes) == measured
        assert engine.costs(refresh=True, on_pass=lambda: passes.append(1)) != first
        assert len(passes) > measured


def test_another_bundle_has_another_key(tmp_path: Path) -> None:
    cpu = make_provider("cpu")
    one, two = (make_bundle(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    keys = {make_key(open_bundle(path), provider=cpu, threads=2) for path in (one, one, two)}
    assert len(keys) == 2
