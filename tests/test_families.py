"""The sweep over model types: its tiny models, its verdicts, its memory, and the whole of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from export.attention import fused
from export.errors import first_line
from tools.families import __main__ as command
from tools.families.examine import examine
from tools.families.page import render_page
from tools.families.record import Record, Verdict
from tools.families.shrink import shrink_config
from tools.families.specimen import make_model

JOBS = [("llama", "fused"), ("gpt2", "fused")]


def verdict(family: str, kind: str = "ok", **fields: Any) -> Verdict:
    return Verdict(family=family, flavour="fused", verdict=kind, **fields)


def test_a_tiny_config_keeps_every_kind_of_layer_window_and_head() -> None:
    small = shrink_config("gemma3_text")
    assert small.layer_types == ["sliding_attention", "full_attention"]
    assert small.num_hidden_layers == 2
    assert small.sliding_window == 16
    assert small.num_key_value_heads < small.num_attention_heads
    assert shrink_config("deepseek_v3").num_key_value_heads == 4  # as many as heads, as there
    assert shrink_config("gpt_bigcode").multi_query
    assert shrink_config("llama4_text").no_rope_layers == [1, 0]
    per_layer = shrink_config("gemma4_text").per_layer_config
    assert [layer.head_dim for layer in per_layer] == [16, 32]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3_moe", "gemma3", "bart"])
def test_a_tiny_model_is_tiny_and_far_from_flat(family: str) -> None:
    model = make_model(family)
    assert sum(p.numel() for p in model.parameters()) < 1e6
    vectors = [p for p in model.parameters() if p.dim() == 1]
    assert all(p.std() > 0.01 for p in vectors if p.numel() > 1)


def test_a_record_is_shared_and_goes_on(tmp_path: Path) -> None:
    first, second = Record(tmp_path / "r.json"), Record(tmp_path / "r.json")
    assert first.claim(JOBS) == JOBS[0]
    assert second.claim(JOBS) == JOBS[1]  # the first is begun by a living process
    assert second.claim(JOBS) is None
    second.add(verdict("gpt2", error=1e-7))
    assert first.left(JOBS) == [JOBS[0]]
    assert Record(tmp_path / "r.json").verdicts() == [verdict("gpt2", error=1e-7)]
    first.forget(JOBS)
    assert first.left(JOBS) == JOBS


def test_what_a_dead_process_had_begun_is_done_anew(tmp_path: Path) -> None:
    record = Record(tmp_path / "r.json")
    record.claim(JOBS)
    content = json.loads((tmp_path / "r.json").read_text())
    content["begun"] = dict.fromkeys(content["begun"], 2**22 + 1)  # above the largest process id
    (tmp_path / "r.json").write_text(json.dumps(content))
    assert record.claim(JOBS) == JOBS[0]


@pytest.mark.parametrize("content", ["[]", "{", '{"versions": {}}'])
def test_a_file_that_is_no_record_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(command.ToolError, match="does not hold the verdicts"):
        Record(tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text() == content


def test_verdicts_of_other_versions_are_not_mixed(tmp_path: Path) -> None:
    Record(tmp_path / "r.json").add(verdict("llama"))
    content = json.loads((tmp_path / "r.json").read_text())
    content["versions"]["torch"] = "1.0"
    (tmp_path / "r.json").write_text(json.dumps(content))
    with pytest.raises(command.ToolError, match=r"torch 1\.0"):
        Record(tmp_path / "r.json")


def test_the_page_counts_and_gives_reasons() -> None:
    page = render_page(
        [
            verdict("llama", error=2e-7),
            verdict("mamba", "refused", reason="it | recurs"),
            verdict("odd", "failed", reason="parity"),
        ]
    )
    assert "fused: 1 of 3 types are right" in page
    assert "llama (2e-07)" in page
    assert "| mamba | it \\| recurs |" in page
    assert "| odd | **failed**: parity |" in page


def test_an_unknown_type_is_an_error_that_names_the_closest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.main(["lama"]) == 2
    assert "did you mean llama?" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        command.main([])


def test_a_family_is_right_or_refused(tmp_path: Path) -> None:
    arguments = [
        "mistral",
        "mamba",
        "--flavour",
        "fused",
        "--quiet",
        "--json",
        str(tmp_path / "r.json"),
    ]
    run = subprocess.run(
        [sys.executable, "-m", "tools.families", *arguments],
        cwd=Path(command.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = run.stdout.splitlines()
    assert lines[0].startswith("mistral (fused)  ok")
    assert lines[1].startswith("mamba (fused)  refused: ")
    assert lines[2] == "1 ok, 1 refused, 0 failed"


def test_a_graph_that_sees_one_token_less_than_its_window_is_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attributes = fused._attributes
    monkeypatch.setattr(
        fused, "_attributes", lambda needs: attributes(needs) | {"local_window_size": 15}
    )
    found = examine("mistral", flavour="fused")
    assert found.verdict == "failed"
    assert "parity: the graph differs" in found.reason


@pytest.mark.slow
def test_every_type_is_right_or_refused(tmp_path: Path) -> None:
    assert command.main(["--all", "--json", str(tmp_path / "r.json")]) == 0


def test_only_known_fields_are_set() -> None:
    assert set(shrink_config("llama").to_dict()) == set(AutoConfig.for_model("llama").to_dict())


def test_what_a_library_says_after_a_colon_belongs_to_its_sentence() -> None:
    assert first_line(ValueError("\nfor a:\n  for b:\n no head\nmore")) == "for a: for b: no head"
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
