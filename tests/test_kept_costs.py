"""Cost tables on disk: kept, found again, and never in the way."""

import json
import logging
from pathlib import Path

import pytest
from test_costs import make_table
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.bundle import open_bundle
from runtime.costs import HostCosts
from runtime.kept_costs import CostKey, keep_costs, make_key, read_costs
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
