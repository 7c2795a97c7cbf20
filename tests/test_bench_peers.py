"""Peers: environments made once, models made whole or not at all, rows that say what they are."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_bundle import make_entry

from export.progress import Progress
from tools.bench import conversions, environments
from tools.bench.conversions import Wanted, build_genai, find_checkpoint, make_genai_pair, make_gguf
from tools.bench.environments import make_environment, run_logged
from tools.bench.peers import PEERS, find_peer, prepare_peer
from tools.bench.unpack import spell_rotary_base, tie_head
from tools.errors import ToolError

QUIET = Progress(quiet=True)
WANTED = Wanted(
    checkpoint="a",
    draft="b",
    target=make_entry("target", vocabulary=8, context=64),
    threads=2,
    widths=(1, 3),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Commands:
    """Stands in for running commands; `make` may write what a command would."""

    def __init__(self, make: Any = None, *, fail: str = "") -> None:
        self.commands: list[list[str]] = []
        self.make = make
        self.fail = fail

    def __call__(
        self, command: Sequence[str], _log: Path, *, variables: Mapping[str, str] | None = None
    ) -> None:
        self.commands.append(list(command))
        if self.fail:
            raise ToolError(self.fail)
        if self.make is not None:
            self.make(command)


def test_an_environment_is_made_once_and_anew_for_other_pins(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    run = Commands(
        lambda command: Path(command[-1]).mkdir(parents=True) if "venv" in command else 0
    )
    monkeypatch.setattr(environments, "run_logged", run)
    python = make_environment("peer", ["a==1"], progress=QUIET)
    assert python.is_relative_to(cache / "peers" / "peer")
    assert [command[2] for command in run.commands] == ["venv", "pip"]
    assert run.commands[1][-1] == "a==1"
    make_environment("peer", ["a==1"], progress=QUIET)
    assert len(run.commands) == 2
    make_environment("peer", ["a==2"], progress=QUIET)
    assert len(run.commands) == 4


def test_an_environment_that_failed_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "run_logged", Commands(fail="No matching distribution"))
    with pytest.raises(ToolError, match="No matching distribution"):
        make_environment("peer", ["a==1"], progress=QUIET)
    run = Commands(
        lambda command: Path(command[-1]).mkdir(parents=True) if "venv" in command else 0
    )
    monkeypatch.setattr(environments, "run_logged", run)
    make_environment("peer", ["a==1"], progress=QUIET)
    assert len(run.commands) == 2


def test_a_command_that_fails_is_quoted_with_its_log(tmp_path: Path) -> None:
    log = tmp_path / "deep" / "x.log"
    words = "import sys; print('first'); print('the reason', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ToolError, match=r"the reason \(all of it: .*x\.log\)"):
        run_logged([sys.executable, "-c", words], log)
    with pytest.raises(ToolError, match=r"exit status 4"):
        run_logged([sys.executable, "-c", "raise SystemExit(4)"], tmp_path / "y.log")
    show = "import os; print(os.environ['SHOWN'])"
    run_logged([sys.executable, "-c", show], tmp_path / "z.log", variables={"SHOWN": "yes"})
    assert (tmp_path / "z.log").read_text().strip() == "yes"


@pytest.mark.parametrize(
    ("source", "recipe"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("Qwen/Qwen2.5-Coder-0.5B-Instruct (x.gguf)", "qwen2.5-coder-0.5b-instruct"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
    ],
)
def test_a_bundle_s_source_names_its_recipe(source: str, recipe: str) -> None:
    assert find_checkpoint(source) == recipe


def test_a_source_without_a_recipe_asks_for_the_checkpoint() -> None:
    with pytest.raises(ToolError, match="name its checkpoint with --checkpoint"):
        find_checkpoint("someone/else")


def test_every_peer_is_pinned_and_has_a_module_and_distinct_rows() -> None:
    engines = Path(conversions.__file__).parent / "engines"
    names = []
    for peer in PEERS.values():
        assert all("==" in pin for pin in peer.pins)
        assert (engines / f"{peer.module}.py").is_file()
        rows = peer.make_rows(peer.name, WANTED)
        assert all(row.worker == peer.name for row in rows)
        names += [row.name for row in rows]
    assert len(names) == len(set(names))
    assert "onnxruntime-genai-draft k=3" in names
    with pytest.raises(ToolError, match="no peer is called 'x'; known are onnxruntime-genai"):
        find_peer("x")


def test_a_peer_is_launched_with_its_model_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.bench.peers.make_environment", lambda *_, **__: Path("/venv/python"))
    peer = find_peer("llama-cpp")
    object_ = {**vars(peer), "make_model": lambda *_: Path("/models/x.gguf")}
    launch, rows = prepare_peer(type(peer)(**object_), WANTED, progress=QUIET)
    assert launch.arguments == ("/models/x.gguf", "2")
    assert launch.module == "tools.bench.engines.llama"
    assert [row.name for row in rows] == ["llama-cpp"]


def test_a_peer_that_reads_gguf_refuses_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"")
    wanted = Wanted(**{**vars(WANTED), "checkpoint": str(tmp_path / "x.gguf")})
    assert make_gguf(wanted, Path("python"), QUIET) == tmp_path / "x.gguf"
    wanted = Wanted(**{**vars(WANTED), "checkpoint": str(tmp_path)})
    with pytest.raises(ToolError, match="needs a GGUF file"):
        make_gguf(wanted, Path("python"), QUIET)


@pytest.fixture
def genai_python(tmp_path: Path) -> Path:
    """A peer's environment with a builder in it."""
    builder = tmp_path / "venv" / "lib" / "onnxruntime_genai" / "models" / "builder.py"
    builder.parent.mkdir(parents=True)
    builder.write_text("", encoding="utf-8")
    (tmp_path / "venv" / "bin").mkdir()
    return tmp_path / "venv" / "bin" / "python"


def write_genai(command: Sequence[str]) -> None:
    """Write what the builder would: a configuration, a graph, its weights."""
    out = Path(command[command.index("-o") + 1])
    out.mkdir()
    decoder = {"filename": "model.onnx", "source": command[command.index("-i") + 1]}
    (out / "genai_config.json").write_text(json.dumps({"model": {"decoder": decoder}}))
    for name in ("model.onnx", "model.onnx.data", "tokenizer.json"):
        (out / name).write_text(name)


def test_a_genai_model_matches_the_bundle_and_is_built_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, genai_python: Path
) -> None:
    source = tmp_path / "checkpoint"
    source.mkdir()
    run = Commands(write_genai)
    monkeypatch.setattr(conversions, "run_logged", run)
    entry = make_entry("target", vocabulary=8, context=64)
    quantised = type(entry)(**{**vars(entry), "precision": "int4", "block_size": 32})
    folder = build_genai(str(source), quantised, genai_python, QUIET)
    assert build_genai(str(source), quantised, genai_python, QUIET) == folder
    (command,) = run.commands
    assert command[command.index("-p") + 1] == "int4"
    assert command[-1] == "block_size=32"
    build_genai(str(source), entry, genai_python, QUIET)
    assert "fp32" in run.commands[1]
    assert "--extra_options" not in run.commands[1]


def test_a_failed_conversion_leaves_no_model_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, genai_python: Path
) -> None:
    (tmp_path / "checkpoint").mkdir()
    monkeypatch.setattr(conversions, "run_logged", Commands(fail="out of memory"))
    for _ in range(2):
        with pytest.raises(ToolError, match="out of memory"):
            build_genai(str(tmp_path / "checkpoint"), WANTED.target, genai_python, QUIET)


def test_a_genai_pair_holds_both_models_and_names_the_draft(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, genai_python: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(conversions, "run_logged", Commands(write_genai))
    wanted = Wanted(
        **{**vars(WANTED), "checkpoint": str(tmp_path / "a"), "draft": str(tmp_path / "b")}
    )
    folder = make_genai_pair(wanted, genai_python, QUIET)
    model = json.loads((folder / "genai_config.json").read_text())["model"]
    assert model["decoder"]["source"].endswith("/a")
    assert model["draft"]["source"].endswith("/b")
    assert (folder / model["decoder"]["filename"]).is_file()
    assert (folder / model["draft"]["filename"]).is_file()
    alone = build_genai(str(tmp_path / "a"), wanted.target, genai_python, QUIET)
    kept = json.loads((alone / "genai_config.json").read_text())["model"]
    assert "draft" not in kept  # the target's own configuration is not the pair's
    assert (folder / "model.onnx.data").stat().st_nlink == 2


def test_a_pair_without_a_draft_says_how_to_name_one() -> None:
    with pytest.raises(ToolError, match="--draft-checkpoint"):
        make_genai_pair(Wanted(**{**vars(WANTED), "draft": None}), Path("python"), QUIET)


def test_the_rotary_base_is_spelled_for_older_readers(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"rope_parameters": {"rope_theta": 5.0}}')
    spell_rotary_base(config)
    assert json.loads(config.read_text())["rope_theta"] == 5.0
    config.write_text('{"hidden_size": 1}')
    spell_rotary_base(config)
    assert json.loads(config.read_text()) == {"hidden_size": 1}


@pytest.mark.parametrize(("head", "tied"), [([[1, 2]], True), ([[1, 3]], False), ([[1]], False)])
def test_a_head_is_tied_only_where_it_is_the_embedding(head: list[list[int]], tied: bool) -> None:
    calls: list[str] = []
    model = SimpleNamespace(
        config=SimpleNamespace(tie_word_embeddings=False),
        get_output_embeddings=lambda: SimpleNamespace(weight=np.array(head)),
        get_input_embeddings=lambda: SimpleNamespace(weight=np.array([[1, 2]])),
        tie_weights=lambda: calls.append("tied"),
    )
    tie_head(model)
    assert model.config.tie_word_embeddings is tied
    assert bool(calls) is tied
