"""Results on disk: what was written is read, its schema holds, an interrupted run goes on."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tools.bench.journal import Journal
from tools.bench.prompts import Prompt
from tools.bench.record import Record, read_record, write_record
from tools.bench.rows import Row
from tools.bench.summary import summarise
from tools.bench.turns import Sample
from tools.bench.wire import Answer, Hello, Timed
from tools.errors import ToolError

SCHEMA = Path(__file__).parents[1] / "tools" / "bench" / "result.schema.json"
HEADER = {
    "command": "python -m tools.bench x",
    "machine": {"processor": "a <fast> one", "memory": "1 GiB"},
    "bundle": {"target": "t, int4", "manifest": "sha256 0"},
    "method": "greedy",
    "prompts": {"number": 2, "tokens": 4, "sha256": "0"},
    "settings": {"repeats": 2, "threads": 2},
}
PLAN = {"bundle": {"target": "t"}, "prompts": "abc", "rows": "def"}


def make_answer(step_s: float, *, tokens: int = 5, width: int = 1, request: int = 0) -> Answer:
    bursts = [tuple(range(i, min(i + width, tokens))) for i in range(1, tokens, width)]
    chunks = [Timed(at_s=0.5, token_ids=(0,), shows_text=True, request=request)]
    chunks += [
        Timed(at_s=0.5 + step_s * (i + 1), token_ids=ids, shows_text=True, request=request)
        for i, ids in enumerate(bursts)
    ]
    return Answer(
        chunks=tuple(chunks),
        stats={"target_passes": len(chunks), "drafted": 4, "tested": 3, "accepted": 2},
        cpu_s=1.0,
        wall_s=chunks[-1].at_s,
        busy_threads=2,
        peak_bytes=5_000_000,
        memory={"target weights": 2_000_000, "target cache": 1_000_000},
    )


def make_record(*, plain_s: float = 0.1, fast_s: float = 0.1, **changes: Any) -> Record:
    """A plain row, and one that emits two tokens a chunk."""
    samples = [
        Sample(row=row, prompt=prompt, repeat=repeat, answer=make_answer(step, width=width))
        for repeat in range(2)
        for prompt in ("p", "q")
        for row, step, width in (("plain", plain_s, 1), ("fast", fast_s, 2))
    ]
    fields: dict[str, Any] = {
        "header": HEADER,
        "workers": {"forerun": Hello(versions={"onnxruntime": "1"}, threads=2, load_s=0.5)},
        "rows": (
            Row(name="plain", worker="forerun"),
            Row(name="fast", worker="forerun", settings={"k": 1}),
            Row(name="lost", worker="lost"),
        ),
        "prompts": (
            Prompt(name="p", category="chat", ids=(1, 2)),
            Prompt(name="q", category="code", ids=(3, 4, 5)),
        ),
        "failed": {"lost": "cannot be <installed>"},
        "samples": tuple(samples),
        "widths": {"target": {"1": [0.1, 0.12, 0.11], "4": [0.2, 0.22, 0.21]}},
    }
    return Record(**{**fields, **changes})


def check(value: Any, schema: dict[str, Any], root: dict[str, Any], place: str = "result") -> None:
    """Check a value by the part of JSON Schema that our schema uses."""
    kinds: dict[str, Any] = {
        "object": dict,
        "array": list,
        "string": str,
        "number": (int, float),
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    if "const" in schema:
        assert value == schema["const"], place
    if "enum" in schema:
        assert value in schema["enum"], place
    if "type" in schema:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        assert isinstance(value, tuple(kinds[name] for name in names)), place
        assert not isinstance(value, bool) or "boolean" in names, place
    if isinstance(value, list):
        for i, item in enumerate(value):
            check(item, schema["items"], root, f"{place}[{i}]")
    if isinstance(value, dict):
        known = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), place
        more = schema.get("additionalProperties", {})
        for name, item in value.items():
            assert name in known or more is not False, f"{place}.{name}"
            check(item, known.get(name, more), root, f"{place}.{name}")


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = make_record()
    write_record(record, asdict(summarise(record)), tmp_path / "r.json")
    assert read_record(tmp_path / "r.json") == record
    assert [file.name for file in tmp_path.iterdir()] == ["r.json"]


def test_what_is_written_keeps_the_documented_schema(tmp_path: Path) -> None:
    sweep = Sample(row="fast", prompt="0:p", repeat=0, answer=make_answer(0.1), point="prompt=64")
    record = make_record(samples=(*make_record().samples, sweep))
    write_record(record, asdict(summarise(record)), tmp_path / "r.json")
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    result = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    check(result, schema, schema)
    with pytest.raises(AssertionError, match="format_version"):
        check({**result, "format_version": 2}, schema, schema)
    with pytest.raises(AssertionError, match="surprise"):
        check({**result, "surprise": 1}, schema, schema)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no json", "cannot read"),
        ("[]", "no result of the benchmark in format 1"),
        ('{"format_version": 0}', "no result of the benchmark in format 1"),
        ('{"format_version": 1}', "is damaged: KeyError"),
        ('{"format_version": 1, "header": {}, "workers": []}', "is damaged"),
    ],
)
def test_a_file_that_is_no_result_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ToolError, match=said):
        read_record(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="cannot read"):
        read_record(tmp_path / "none.json")


def test_an_interrupted_run_goes_on_from_its_journal(tmp_path: Path) -> None:
    path, samples = tmp_path / "j", make_record().samples
    journal = Journal(path, PLAN, resume=False)
    journal.add(samples[0])
    journal.add(samples[1])
    journal.close(complete=False)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"row": "pla')  # the process was killed in the middle of a line
    again = Journal(path, PLAN, resume=True)
    assert again.samples == list(samples[:2])
    again.add(samples[2])
    again.close(complete=False)
    third = Journal(path, PLAN, resume=True)
    assert third.samples == list(samples[:3])
    third.close(complete=True)
    assert not path.exists()


def test_an_unfinished_run_is_not_thrown_away_unasked(tmp_path: Path) -> None:
    Journal(tmp_path / "j", PLAN, resume=False).close(complete=False)
    with pytest.raises(ToolError, match="was not finished: add --resume"):
        Journal(tmp_path / "j", PLAN, resume=False)


def test_a_run_that_plans_otherwise_cannot_go_on(tmp_path: Path) -> None:
    Journal(tmp_path / "j", PLAN, resume=False).close(complete=False)
    other = {**PLAN, "prompts": "xyz"}
    with pytest.raises(ToolError, match=r"another run \(other prompts\)"):
        Journal(tmp_path / "j", other, resume=True)
    (tmp_path / "j").write_text("", encoding="utf-8")
    with pytest.raises(ToolError, match="another run"):
        Journal(tmp_path / "j", PLAN, resume=True)


def test_a_resume_without_an_earlier_run_begins_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", PLAN, resume=True)
    assert journal.samples == []
    journal.close(complete=True)


def test_a_journal_without_a_file_keeps_samples_in_memory() -> None:
    journal = Journal(None, PLAN, resume=False)
    journal.add(make_record().samples[0])
    journal.close(complete=True)
    assert len(journal.samples) == 1
