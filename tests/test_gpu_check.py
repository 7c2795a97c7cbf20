"""The check script: on a machine without a GPU, and on one that only pretends to have one."""

import json
import os
import shutil
import signal
import subprocess
import time

import pytest
from fake_device import Record, make_fake_ort
from tiny_bundle import make_bundle

import runtime.session
from tools.gpu_check import checks, meter
from tools.gpu_check.__main__ import Run, main, run_checks
from tools.gpu_check.apart import run_apart
from tools.gpu_check.rows import Row, guarded, render_rows
from tools.gpu_check.subjects import FULL, QUICK, Subject

CONTEXT = 1200
LITTLE = checks.Effort(passes=2, prompts=1, tokens=8)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check")
    for name, flavour in (
        *(("fused", "fused"), ("portable", "portable")),
        *(("cuda", "fused"), ("tensorrt", "portable")),
    ):
        make_bundle(folder / name, drafts=0, vocabulary=16, context=CONTEXT, flavour=flavour)
    return folder


@pytest.fixture(autouse=True)
def little(monkeypatch):
    monkeypatch.setattr(checks, "QUICK", LITTLE)
    monkeypatch.setattr(checks, "STEP_RATIO", 1e9)  # a tiny model's steps are all overhead


@pytest.fixture
def pretended(monkeypatch):
    record = Record()
    monkeypatch.setattr(runtime.session, "ort", make_fake_ort(record))
    monkeypatch.setattr(runtime.session, "_installed_twice", list)
    return record


HERE = Run(None, seconds=600, is_apart=False)


def verdicts(rows):
    return {(row.check, row.subject): row.verdict for row in rows}


def test_without_a_gpu_the_cpu_part_is_run_and_the_rest_says_why(bundles, tmp_path, capsys):
    out = tmp_path / "rows.json"
    assert main(["--quick", "--bundles", str(bundles), "--json", str(out)]) == 0
    printed = capsys.readouterr()
    assert "no GPU here: only the CPU" in printed.err
    content = json.loads(out.read_text())
    rows = [Row(**row) for row in content["rows"]]
    assert "\n".join(render_rows(rows)) + "\n" == printed.out
    found = verdicts(rows)
    assert found["loads", "cpu"] == "ok"
    assert found["loads", "cuda"] == found["loads", "tensorrt"] == "not here"
    assert found["parity of flavours", "portable beside fused"] == "ok"
    assert found["step time", "portable beside fused"] == "ok"
    for name in ("fused", "portable"):
        for check in ("v(m)", "greedy on = off", "tokens a second", "host share"):
            assert found[check, f"{name} on cpu"] == "ok"
    for name in ("cuda on cuda", "tensorrt on cuda", "tensorrt on tensorrt"):
        assert found["all", name] == "not here"
    reasons = [row.found for row in rows if row.subject == "cuda"]
    assert any("not part of the installed ONNX Runtime" in reason for reason in reasons)


def test_with_a_gpu_every_row_is_run(bundles, pretended, monkeypatch, tmp_path):
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    rows = list(run_checks(bundles, QUICK, run=HERE, quick=True))
    found = verdicts(rows)
    assert set(found.values()) == {"ok"}
    assert found["loads", "tensorrt"] == "ok"
    for graphs in ("", " with CUDA graphs"):
        for check in ("v(m)", "greedy on = off", "tokens a second", "host share"):
            assert (check, f"cuda on cuda{graphs}") in found
    for check in ("engine build", "parity with the CPU", "v(m)", "greedy on = off"):
        assert (check, "tensorrt on tensorrt") in found
    numbers = {number for session in pretended.sessions for number in session.graphs}
    assert {"1", "2", "-1"} <= numbers
    (row,) = [r for r in rows if (r.check, r.subject) == ("host share", "cuda on cuda")]
    assert 0 < row.figures["share"] < 1
    assert 12 <= row.figures["bytes in"] < 2000  # ids and a length; no cache
    assert 28 <= row.figures["bytes out"] < 100  # the two best of the wanted rows, no row itself


def test_what_is_slow_is_missed_and_what_is_wrong_fails(bundles, monkeypatch, capsys):
    monkeypatch.setattr(checks, "STEP_RATIO", 0.0)
    rows = list(checks.check_flavours(bundles, QUICK[0], QUICK[1]))
    assert [row.verdict for row in rows] == ["ok", "missed"]
    monkeypatch.setattr(checks, "TOLERANCE", {"float32": 0.0})
    assert main(["--quick", "--bundles", str(bundles)]) == 1
    assert "1 failed" in capsys.readouterr().out


def test_a_node_left_to_the_cpu_and_a_provider_that_does_not_load(bundles, pretended):
    pretended.on_cpu = ["Attention"]
    (row,) = checks.check_loading(bundles / "cuda", "cuda")
    assert (row.verdict, row.found) == ("missed", "1 nodes left to the CPU (Attention)")
    pretended.loads = False
    rows = list(guarded("loads", "cuda", lambda: checks.check_loading(bundles / "cuda", "cuda")))
    assert [row.verdict for row in rows] == ["not here"]


def test_a_broken_bundle_is_a_row_and_the_others_still_come(bundles, tmp_path):
    for name in ("fused", "portable"):
        shutil.copytree(bundles / name, tmp_path / name)
    (tmp_path / "portable" / "target" / "model.onnx").write_bytes(b"nothing")
    rows = list(run_checks(tmp_path, QUICK[:2], run=HERE, quick=True))
    found = verdicts(rows)
    assert found["v(m)", "portable on cpu"] == "failed"
    assert found["v(m)", "fused on cpu"] == "ok"


def _yield_one():
    yield Row(check="a", subject="b", found="c")
    os.write(1, b"noise of a library")


def _fail():
    yield Row(check="a", subject="b", found="c")
    raise RuntimeError("first\nsecond")


def _die():
    yield Row(check="a", subject="b", found="c")
    os.kill(os.getpid(), signal.SIGSEGV)


def _hang():
    yield Row(check="a", subject="b", found="c")
    time.sleep(600)


@pytest.mark.parametrize(
    ("find", "ends"),
    [
        (_yield_one, []),
        (_fail, ["RuntimeError: first second"]),
        (_die, ["the process died (SIGSEGV)"]),
    ],
)
def test_a_check_that_dies_costs_its_own_rows_alone(find, ends, capfd):
    rows = list(run_apart("a", "b", find, seconds=600))
    assert [row.found for row in rows] == ["c", *ends]
    assert [row.verdict for row in rows] == ["ok", *["failed"] * len(ends)]
    assert capfd.readouterr().out == ""


def test_a_check_that_hangs_is_ended():
    # A busy machine may not even have started it by then.
    *_, last = run_apart("a", "b", _hang, seconds=2)
    assert (last.found, last.verdict) == ("no answer within 2 s", "failed")


def test_one_kind_is_run_alone_and_none_when_the_time_is_up(bundles):
    flavours = Run("flavours", seconds=600, is_apart=False)
    kinds = {row.check for row in run_checks(bundles, QUICK[:2], run=flavours, quick=True)}
    assert kinds == {"parity of flavours", "step time"}
    late = Run(None, seconds=0, is_apart=False)
    rows = list(run_checks(bundles, QUICK[:2], run=late, quick=True))
    assert {(row.found, row.verdict) for row in rows[:3]} == {("no time was left", "not here")}


def test_no_bundle_at_all_says_how_to_make_them(tmp_path, capsys):
    assert main(["--quick", "--bundles", str(tmp_path)]) == 2
    assert "--prepare" in capsys.readouterr().err


def test_the_full_set_is_for_every_provider_and_holds_the_quick_one():
    assert FULL[: len(QUICK)] == QUICK
    assert {subject.provider for subject in QUICK} == {"cpu", "cuda", "tensorrt"}
    assert len({subject.name for subject in FULL}) == len(FULL)
    assert all(isinstance(subject, Subject) for subject in FULL)


def test_device_memory_is_what_the_driver_says(monkeypatch):
    def answer(text):
        done = subprocess.CompletedProcess([], 0, stdout=text)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    answer("1234\n")
    assert meter.device_memory() == 1234 << 20
    with meter.MemoryWatch() as watch:
        answer("2000\n")
        watch._over.wait(0.3)
    assert watch.peak == 2000 << 20
    answer("N/A\n")
    assert meter.device_memory() is None
