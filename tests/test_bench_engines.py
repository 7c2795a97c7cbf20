"""Engines behind the meter: ours on a tiny bundle, the peers with their libraries replaced."""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tiny_bundle import make_bundle

from tools.bench.engines import genai, llama, openvino
from tools.bench.engines.forerun import Forerun
from tools.bench.serve import measure
from tools.bench.wire import Job

PROMPT = (0, 1, 2, 1)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Forerun:
    folder = make_bundle(tmp_path_factory.mktemp("b"), drafts=1, context=64, end_ids=())
    return Forerun(str(folder), 1)


def make_job(mode: str, *, tokens: int = 8, **settings: Any) -> Job:
    return Job(prompt_ids=PROMPT, max_tokens=tokens, settings={"mode": mode, **settings})


def test_plain_and_speculative_emit_the_same_ids_in_other_chunks(ours: Forerun) -> None:
    plain = measure(ours, make_job("engine", speculate="off"))
    drafted = measure(ours, make_job("engine", stages=["draft"], k=2))
    assert plain.token_ids == drafted.token_ids
    assert [len(chunk.token_ids) for chunk in plain.chunks] == [1] * 8
    assert len(drafted.chunks) < 8
    assert plain.stats["target_passes"] == 8
    assert drafted.stats["drafted"] > 0


def test_a_prompt_asked_again_is_read_again(ours: Forerun) -> None:
    # A cache that kept it would make the second first-token time that of one token.
    job = make_job("engine", speculate="off")
    fed: list[int] = []
    feed = ours._engine.target._feed

    def spy(new: Sequence[int], rows: int) -> Any:
        fed.append(len(new))
        return feed(new, rows)

    ours._engine.target._feed = spy  # type: ignore[method-assign]
    try:
        for _ in range(2):
            measure(ours, job)
    finally:
        ours._engine.target._feed = feed  # type: ignore[method-assign]
    assert fed.count(len(PROMPT)) == 2


def test_raw_passes_are_single_passes_of_the_targets_session(ours: Forerun) -> None:
    raw = measure(ours, make_job("raw"))
    assert [len(chunk.token_ids) for chunk in raw.chunks] == [1] * 8
    plain = measure(ours, make_job("engine", speculate="off"))
    assert measure(ours, make_job("engine", speculate="off")).token_ids == plain.token_ids


def test_a_pass_is_timed_at_every_width_that_fits(ours: Forerun) -> None:
    widths = measure(ours, Job(prompt_ids=(0,) * 58, max_tokens=1, settings=WIDTHS)).stats["widths"]
    assert list(widths) == ["1", "2", "3", "4", "5", "6"]
    assert all(len(seconds) == 7 and min(seconds) > 0 for seconds in widths.values())


WIDTHS = {"mode": "widths", "model": "draft"}


def test_prompts_at_once_are_told_apart(ours: Forerun) -> None:
    job = Job(
        prompt_ids=PROMPT,
        max_tokens=4,
        settings={"mode": "engine", "speculate": "off"},
        also=((1, 2), (3, 1, 2)),
    )
    answers = measure(ours, job).split()
    assert [len(answer.token_ids) for answer in answers] == [4, 4, 4]
    for ids, answer in zip((PROMPT, (1, 2), (3, 1, 2)), answers, strict=True):
        alone = Job(prompt_ids=ids, max_tokens=4, settings=job.settings)
        assert measure(ours, alone).token_ids == answer.token_ids


def test_memory_is_named_by_model_and_part(ours: Forerun) -> None:
    names = ["target weights", "draft weights", "target cache", "draft cache"]
    assert list(ours.memory()) == names
    assert min(ours.memory().values()) > 0


class GenaiGenerator:
    """Decides the ids of a script, some calls several at once."""

    def __init__(self, script: Sequence[Sequence[int]]) -> None:
        self.script, self.ids = list(script), []  # type: ignore[var-annotated]

    def append_tokens(self, ids: Any) -> None:
        self.ids += [int(token) for token in ids]

    def token_count(self) -> int:
        return len(self.ids)

    def is_done(self) -> bool:
        return not self.script

    def generate_next_token(self) -> None:
        self.ids += self.script.pop(0)

    def get_sequence(self, _index: int) -> Any:
        return np.array(self.ids)

    def get_speculative_stats(self) -> dict[str, int]:
        return {
            "draft_tokens_proposed": 5,
            "draft_tokens_evaluated": 4,
            "draft_tokens_accepted": 3,
        }


def test_genai_s_tokens_are_counted_by_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = [[7], [8, 9], [], [10]]
    seen: dict[str, Any] = {}
    params = SimpleNamespace(
        set_search_options=lambda **options: seen.update(options),
        set_speculative_options=lambda **options: seen.update(options),
    )
    library = SimpleNamespace(
        Config=lambda _folder: SimpleNamespace(overlay=lambda text: seen.update(overlay=text)),
        Model=lambda _config: None,
        GeneratorParams=lambda _model: params,
        Generator=lambda _model, _params: GenaiGenerator(script),
    )
    monkeypatch.setitem(sys.modules, "onnxruntime_genai", library)  # type: ignore[arg-type]
    (tmp_path / "genai_config.json").write_text('{"model": {"decoder": {"filename": "m.onnx"}}}')
    (tmp_path / "m.onnx").write_text("12345")
    engine = genai.Genai(str(tmp_path), 3)
    assert '"intra_op_num_threads": 3' in seen["overlay"]
    answer = measure(engine, Job(prompt_ids=(1, 2), max_tokens=4))
    assert [chunk.token_ids for chunk in answer.chunks] == [(7,), (8, 9), (), (10,)]
    assert answer.stats == {}
    assert answer.memory == {"weights": 5}
    assert seen["max_length"] == 6
    job = Job(prompt_ids=(1,), max_tokens=4, settings={"speculative": {"max_draft_tokens": 2}})
    assert measure(engine, job).stats == {"drafted": 5, "tested": 4, "accepted": 3}
    assert seen["max_draft_tokens"] == 2


def test_llama_stops_at_an_end_token_and_at_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SimpleNamespace(
        model=None,
        n_threads=2,
        reset=lambda: None,
        generate=lambda ids, **_: iter([len(ids), 5, 6, 7, 8]),
    )
    library = SimpleNamespace(
        Llama=lambda **_: model,
        llama_vocab_is_eog=lambda _words, token: token == 6,
        llama_model_get_vocab=lambda _model: None,
    )
    monkeypatch.setitem(sys.modules, "llama_cpp", library)  # type: ignore[arg-type]
    (tmp_path / "m.gguf").write_text("123")
    engine = llama.Llama(str(tmp_path / "m.gguf"), 2)
    assert measure(engine, Job(prompt_ids=(1, 2, 3), max_tokens=9)).token_ids == (3, 5, 6)
    assert measure(engine, Job(prompt_ids=(1,), max_tokens=2)).token_ids == (1, 5)
    assert engine.memory() == {"weights": 3}


def test_openvino_s_bursts_are_handed_over_as_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Any] = {}

    class Pipeline:
        def __init__(self, *_: Any, **options: Any) -> None:
            made.update(options)

        def get_generation_config(self) -> Any:
            return SimpleNamespace()

        def generate(self, inputs: Any, config: Any, streamer: Any) -> None:
            made.update(ids=inputs, tokens=config.max_new_tokens, sampled=config.do_sample)
            streamer.write(4)
            streamer.write([5, 6])
            streamer.end()

    library = SimpleNamespace(
        LLMPipeline=Pipeline,
        SchedulerConfig=SimpleNamespace,
        StreamerBase=object,
        StreamingStatus=SimpleNamespace(RUNNING=0),
        TokenizedInputs=lambda ids, _mask: ids.tolist(),
    )
    tensors = ModuleType("openvino")
    tensors.Tensor = lambda array: array  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openvino_genai", library)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "openvino", tensors)
    (tmp_path / "m.gguf").write_text("123")
    engine = openvino.Openvino(str(tmp_path / "m.gguf"), 2)
    answer = measure(engine, Job(prompt_ids=(1, 2), max_tokens=3))
    assert [chunk.token_ids for chunk in answer.chunks] == [(4,), (5, 6)]
    assert (made["ids"], made["tokens"], made["sampled"]) == ([[1, 2]], 3, False)
    assert made["INFERENCE_NUM_THREADS"] == 2
    assert made["scheduler_config"].enable_prefix_caching is False


@pytest.mark.real
def test_pytorch_answers_through_the_same_meter(tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tools.bench.engines.eager import Eager

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    engine = Eager(str(tmp_path), "float32", 1, str(tmp_path))
    ids = tuple(range(1, 9)) * 2
    plain = measure(engine, Job(prompt_ids=ids, max_tokens=12))
    assert [len(chunk.token_ids) for chunk in plain.chunks] == [1] * 12
    for assist in ("draft", "lookup"):
        job = Job(prompt_ids=ids, max_tokens=12, settings={"assist": assist})
        answer = measure(engine, job)
        assert answer.token_ids == plain.token_ids
        assert len(answer.chunks) < 12
    assert engine.memory()["weights"] == engine.memory()["draft weights"] > 0
