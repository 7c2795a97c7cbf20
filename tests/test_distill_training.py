"""A drafter that is trained: what it is made of, how it is judged, and that no work is lost."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from line_costs import line_costs
from test_distill_text import FINGERPRINT, full_disk
from tiny_exports import checkpoint_of, model_of
from tiny_models import tiny_model, tiny_tokenizer, write_checkpoint

from export.checkpoint import resolve
from export.errors import PublishError
from export.integrity import check_checkpoint
from export.language import read_language
from export.pair import check_languages
from export.plan import Trim
from export.progress import Progress
from export.shortlist import choose_tokens
from export.source_model import load_source
from runtime.costs import TARGET, expected_tokens
from tools.distill import training
from tools.distill.__main__ import main
from tools.distill.batches import Columns, deal_samples
from tools.distill.drafter import count_passed, make_drafter, read_layers, spread_layers
from tools.distill.forecast import add_drafter, make_forecasts
from tools.distill.laws import TopLaws
from tools.distill.losses import ABSENT, measure_acceptance, measure_loss
from tools.distill.measure import Acceptance, measure_drafter
from tools.distill.samples import GIVEN, Sample, write_samples

QUIET = Progress(quiet=True)
SIZE = tiny_tokenizer().get_vocab_size()
TEMPERATURES = (0.0, 0.7, 1.0)


def softmax(rows: np.ndarray) -> np.ndarray:
    weights = np.exp(rows.astype(np.float64) - rows.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def make_samples(count: int, *, seed: int, length: int = 14, top: int = SIZE) -> list[Sample]:
    """Texts with the laws of the tiny target, at each temperature in turn."""
    random = np.random.default_rng(seed)
    lengths = random.integers(length // 2, length + 1, count)
    model, samples = model_of("qwen2"), []
    for number, size in enumerate(lengths.tolist()):
        tokens = random.integers(3, SIZE, size).astype(np.int32)
        with torch.inference_mode():
            logits = model(torch.from_numpy(tokens[None]).long()).logits[0, :-1, :SIZE].numpy()
        laws = TopLaws.of(np.ascontiguousarray(logits[1:]), top)
        kind = ("chat", "code")[number % 2]
        samples.append(Sample(tokens, 2, laws, TEMPERATURES[number % 3], kind))
    return samples


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of text for the tiny target."""
    folder = tmp_path_factory.mktemp("data")
    language = read_language(resolve(str(checkpoint_of("qwen2")), progress=QUIET))
    head = {"format": 1, "fingerprint": language.fingerprint}
    (folder / "corpus.json").write_text(json.dumps(head), encoding="utf-8")
    write_samples(folder / "train-00000.safetensors", make_samples(60, seed=1))
    # What is random has nothing to learn but itself: it is measured on texts that it trains on.
    write_samples(folder / "held-00000.safetensors", make_samples(60, seed=1)[:12])
    return folder


def run(data: Path, output: Path, *more: str) -> int:
    target = str(checkpoint_of("qwen2"))
    options = ["--data", str(data), "--data-tokens", "0", "--tokens", "1500", "--points", "3"]
    options += ["--batch", "64", "--rate", "0.01", "--quiet", "--threads", "1", "--device", "cpu"]
    return main(["--target", target, "--output", str(output), *options, *more])


# --- how it is judged -----------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [tuple(range(9)), (0, 2, 3, 7)])
def test_acceptance_is_the_enumerated_sum_of_minima(kept: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    target, scores = (random.normal(0, 2, (50, n)).astype(np.float32) for n in (9, len(kept)))
    laws = TopLaws.of(target, 9)
    columns = np.full(9, ABSENT)
    columns[list(kept)] = range(len(kept))
    places = torch.from_numpy(columns[laws.ids])
    log_probs = torch.from_numpy(np.take_along_axis(np.log(softmax(target)), laws.ids, axis=1))
    for t in TEMPERATURES:
        if t == 0:
            p = np.eye(9)[target.argmax(axis=1)]
            q = np.eye(9)[np.array(kept)[scores.argmax(axis=1)]]
        else:
            p, q = softmax(target / t), np.zeros((50, 9))
            q[:, list(kept)] = softmax(scores / t)
        found = measure_acceptance(torch.from_numpy(scores), places, log_probs.float(), t)
        assert np.allclose(found, np.minimum(p, q).sum(axis=1), atol=1e-5)


def test_losses_are_what_they_are_called() -> None:
    random = np.random.default_rng(1)
    target, scores = (random.normal(0, 2, (20, n)).astype(np.float32) for n in (6, 4))
    laws = TopLaws.of(target, 6)
    columns = np.array([0, 1, 2, 3, ABSENT, ABSENT])
    p, q = softmax(target), softmax(scores)
    answers = torch.tensor([0, 3, ABSENT, 1] * 5)
    given = (
        torch.from_numpy(scores),
        torch.from_numpy(columns[laws.ids]),
        torch.from_numpy(np.take_along_axis(np.log(p), laws.ids, axis=1)).float(),
        answers,
    )
    inside = p[:, :4]
    wanted = {
        "kl": (inside * np.log(inside / q)).sum(axis=1).mean(),
        "tv": 1 - np.minimum(inside, q).sum(axis=1).mean(),
        "ce": -np.log(q[np.arange(20), answers.clamp(min=0)])[answers != ABSENT].sum() / 20,
    }
    for kind, value in wanted.items():
        assert float(measure_loss(kind, *given)) == pytest.approx(value, abs=1e-5)  # type: ignore[arg-type]


def test_survival_multiplies_the_places_of_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [Sample(s.tokens, s.start, s.laws, GIVEN, "text") for s in make_samples(3, seed=5)]
    kept = np.arange(SIZE)
    source = tiny_model("qwen2", seed=9)
    drafter = make_drafter(
        source, layers=(0,), kept=kept, target_weights=1, trains_embeddings=False
    )
    found = measure_drafter(drafter, samples, Columns(kept, SIZE))
    runs = []
    for sample in samples:
        logits = source_logits(drafter.whole(), sample.tokens)[sample.start - 1 : -1, :SIZE]
        p = np.zeros_like(logits)
        np.put_along_axis(p, sample.laws.ids, np.exp(sample.laws.log_probs.astype(float)), axis=1)
        runs.append(np.minimum(p, softmax(logits)).sum(axis=1))
    assert found.beta[1.0] == pytest.approx(np.concatenate(runs).mean(), abs=1e-3)
    pairs = np.concatenate([run[:-1] * run[1:] for run in runs])
    assert found.survival[1.0][1] == pytest.approx(pairs.mean(), abs=1e-3)
    assert set(found.beta) == set(TEMPERATURES)
    assert found.tokens == 3 * sum(map(len, runs))


def test_a_forecast_scales_the_targets_passes() -> None:
    table = add_drafter(line_costs(), 0.25)
    plain = table.plain_seconds(table.depth)
    assert table.c("drafter") == pytest.approx(
        0.25 * table.seconds(TARGET, width=1, depth=table.depth) / plain
    )
    survival = (0.9, 0.8, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0)
    acceptance = Acceptance(beta={0.0: 0.9}, by_category={}, survival={0.0: survival}, tokens=1)
    forecast = make_forecasts(acceptance, table)[0.0]
    assert forecast.tokens == pytest.approx(expected_tokens(survival[: forecast.k]))
    costs = [table.round_seconds(k, "drafter") for k in range(4)]
    gains = [expected_tokens(survival[:k]) * costs[0] / costs[k] for k in range(4)]
    assert forecast.speedup == pytest.approx(max(gains))
    assert forecast.k == int(np.argmax(gains)) > 0


# --- what it is made of ---------------------------------------------------------------------------


def source_logits(model: Any, tokens: Sequence[int]) -> np.ndarray:
    with torch.inference_mode():
        found: np.ndarray = model(torch.tensor([list(map(int, tokens))])).logits[0].numpy()
    return found


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3_text", "gpt2"])
def test_all_layers_are_the_model_itself_whatever_stands_beside_a_text(family: str) -> None:
    source, kept = model_of(family), np.array([0, 1, 2, 9, 50, 51, 200])
    drafter = make_drafter(
        source, layers=(0, 1), kept=kept, target_weights=100, trains_embeddings=False
    )
    samples = make_samples(3, seed=0, length=40)
    batch = Columns(kept, SIZE).make_batch(samples)
    with torch.inference_mode():
        found = drafter.scores(batch.tokens, batch.places).numpy()
    parts = [source_logits(source, s.tokens)[s.start - 1 : -1, kept] for s in samples]
    assert np.allclose(found, np.concatenate(parts), atol=1e-4)
    trained = set(drafter.trained())
    assert trained
    assert not [name for name in trained if "embed" in name or "head" in name or "wte" in name]
    assert drafter.share == pytest.approx(count_passed(source, columns=len(kept)) / 100)


def test_chosen_layers_come_in_their_order() -> None:
    source = tiny_model("qwen2", num_hidden_layers=5)
    source.config.quantization_config = {"quant_method": "gguf"}  # as a GGUF file's has
    kept = np.arange(SIZE)
    assert read_layers("4, 1-2", 5) == (4, 1, 2)
    for wanted in [(4, 1, 2), spread_layers(3, 5)]:
        drafter = make_drafter(
            source, layers=wanted, kept=kept, target_weights=1, trains_embeddings=True
        )
        assert drafter.source_layers == wanted
        assert "quantization_config" not in drafter.model.config.to_dict()
        assert len(drafter.trained()) == len(list(drafter.model.parameters()))
        own = drafter.whole().state_dict()
        for place, layer in enumerate(wanted):
            name = "self_attn.q_proj.weight"
            assert torch.equal(
                own[f"model.layers.{place}.{name}"],
                source.state_dict()[f"model.layers.{layer}.{name}"],
            )
    assert spread_layers(3, 5) == (0, 2, 4)
    assert spread_layers(2, 30) == (0, 29)
    assert spread_layers(1, 30) == (0,)


def test_every_sample_is_dealt_once_an_epoch_beside_its_like() -> None:
    samples = make_samples(40, seed=3)
    first, again, other = (
        [list(b) for b in deal_samples(samples, tokens=30, epoch=epoch, seed=0)]
        for epoch in (0, 0, 1)
    )
    assert [list(map(id, batch)) for batch in first] == [list(map(id, b)) for b in again]
    assert [list(map(id, batch)) for batch in first] != [list(map(id, b)) for b in other]
    assert sorted(id(s) for batch in first for s in batch) == sorted(map(id, samples))
    spread = [max(len(s.tokens) for s in b) - min(len(s.tokens) for s in b) for b in first]
    assert np.mean(spread) <= 2


# --- training -------------------------------------------------------------------------------------


def test_the_loss_falls_and_the_folder_is_a_draft_like_any_other(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "drafter"
    assert run(data, output, "--layers", "1", "--vocab", "264") == 0
    told = capsys.readouterr().out
    assert "layers 0 of" in told
    assert "264 tokens to propose" in told
    record = json.loads((output / "distil.json").read_text(encoding="utf-8"))
    curve = record["curve"]
    assert [point["loss"] is None for point in curve] == [True, False, False, False]
    assert curve[-1]["loss"] < 0.9 * curve[1]["loss"]
    before, after = (np.mean(list(curve[i]["acceptance"]["beta"].values())) for i in (0, -1))
    assert after > before + 0.02

    target = read_language(resolve(str(checkpoint_of("qwen2")), progress=QUIET))
    checkpoint = resolve(str(output), progress=QUIET)
    check_checkpoint(checkpoint)
    check_languages(target, read_language(checkpoint))
    listed = Trim(listed=output / "draft_vocab.txt")
    kept = choose_tokens(listed, target, progress=QUIET)
    assert len(kept) == 264
    model = load_source(checkpoint, context=None).model
    assert model.config.num_hidden_layers == 1
    held = make_samples(60, seed=1)[:12]
    # What was measured while training is what the folder does.
    drafter = make_drafter(model, layers=(0,), kept=kept, target_weights=1, trains_embeddings=False)
    found = measure_drafter(drafter, held, Columns(kept, SIZE))
    best = max(curve, key=lambda point: np.mean(list(point["acceptance"]["beta"].values())))
    assert found.beta[1.0] == pytest.approx(best["acceptance"]["beta"]["1.0"], abs=2e-3)
    assert list(tmp_path.iterdir()) == [output]


def test_an_interrupted_training_ends_as_if_it_had_not_been(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data, tmp_path / "whole") == 0
    step, steps = training._Run.step, []

    def stopped(self: Any, batch: Any) -> None:
        steps.append(1)
        if len(steps) == 15:
            raise KeyboardInterrupt
        step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(training._Run, "step", stopped)
        assert run(data, tmp_path / "parts") == 130
    assert "the same command goes on from here" in capsys.readouterr().err
    assert not (tmp_path / "parts").exists()
    assert run(data, tmp_path / "parts", "--rate", "0.02") != 0
    assert "belongs to a training of other layers, text or settings" in capsys.readouterr().err
    resumed = []
    with monkeypatch.context() as patch:
        patch.setattr(
            training._Run, "step", lambda self, batch: resumed.append(1) or step(self, batch)
        )
        assert run(data, tmp_path / "parts") == 0
    assert 0 < len(resumed) < 20
    whole, parts = (
        json.loads((tmp_path / name / "distil.json").read_text(encoding="utf-8"))["curve"]
        for name in ("whole", "parts")
    )
    for one, other in zip(whole, parts, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    name = "model.safetensors"
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_a_full_disk_and_a_damaged_state_are_said_in_a_sentence(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with full_disk(20_000):
        assert run(data, tmp_path / "full") == PublishError.exit_code
    assert "no space left" in capsys.readouterr().err
    assert not (tmp_path / "full").exists()
    work = tmp_path / ".full.distil"
    (work / "state.pt").write_bytes(b"half of a file")
    assert run(data, tmp_path / "full") == 2
    assert "state.pt is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layers", "3"], "--layers must be 1 to 2, the checkpoint's layers, but is 3"),
        (["--init-from", ":0,2"], "names layer 2, but the checkpoint has 2, 0 to 1"),
        (["--init-from", ":0-"], "name layers such as"),
        (["--init-from", ":0", "--layers", "2"], "names layers 0 already"),
        (["--init-from", "other"], "do not speak the same language"),
        (["--vocab", "3"], "--vocab must be above 3"),
        (["--prompts", "none.jsonl"], "none.jsonl does not exist"),
        (["--prompts", "a.txt", "--text", "a.txt"], "give one"),
        (["--output", "a.txt"], "a.txt is a file"),
        (["--output", "."], "is not empty"),
        (["--output", ".", "--overwrite"], "holds no drafter of this tool"),
        (["--data", "nothing"], "holds no text yet"),
        (["--data", "foreign"], "tokens of another tokenizer"),
        (["--target", "./none"], "there is no folder or file"),
        (["--device", "cuda"], "PyTorch sees no CUDA device"),
        (["--plot", "curve.doc"], "--plot must name a file in"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    Path("a.txt").write_text("text", encoding="utf-8")
    if "other" in options:
        tokenizer = json.loads(tiny_tokenizer().to_str())
        write_checkpoint(Path("other"), model_of("llama"))
        ids = tokenizer["model"]["vocab"]
        ids["a"], ids["b"] = ids["b"], ids["a"]
        Path("other/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
        capsys.readouterr()
    if "foreign" in options:
        Path("foreign").mkdir()
        head = json.dumps({"format": 1, "fingerprint": FINGERPRINT})
        Path("foreign/corpus.json").write_text(head, encoding="utf-8")
    assert run(data, tmp_path / "drafter", *options) != 0
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert words in message
    assert not Path("drafter").exists()
