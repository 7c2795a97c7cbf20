"""The text that a drafter is trained on: the target's own words with its own laws, never lost."""

import resource
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bundle import END, LETTERS, make_bundle

from export.errors import PublishError
from export.progress import Progress
from runtime import BundleError
from runtime.bundle import open_bundle
from runtime.model import OnnxModel
from tools.distill import writer as writer_module
from tools.distill.corpus import Corpus, extend_corpus, open_corpus
from tools.distill.laws import TopLaws, draw_tokens
from tools.distill.phrases import make_prompts
from tools.distill.samples import GIVEN, Sample, read_samples, write_samples
from tools.distill.source import Item, Source, make_batches, make_held_out
from tools.distill.writer import Writer
from tools.errors import ToolError
from tools.prompt_sets import read_questions

QUIET = Progress(quiet=True)
VOCABULARY = 8
SMALL = Source(batch=3, answer_tokens=6, top=VOCABULARY)
FINGERPRINT = "0" * 64


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("distill") / "bundle"
    return make_bundle(
        folder, drafts=0, vocabulary=VOCABULARY, context=512, sharpness=1.0, flavour="portable"
    )


@pytest.fixture(scope="module")
def writer(bundle: Path) -> Writer:
    return Writer.open(bundle, SMALL, threads=1)


def log_softmax(rows: np.ndarray) -> np.ndarray:
    rows = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def check_laws(bundle: Path, sample: Sample) -> None:
    """The sample's laws are those of the graph that reads the text alone."""
    found = open_bundle(bundle)
    model = OnnxModel.open(found.graph(found.manifest.target), found.manifest.target, threads=1)
    tokens = sample.tokens.tolist()
    wanted = log_softmax(model.score(tokens[:-1], len(tokens) - sample.start))
    own = np.zeros_like(wanted)
    np.put_along_axis(own, sample.laws.ids, sample.laws.log_probs.astype(np.float64), axis=1)
    assert np.allclose(own, wanted, atol=0.01)  # float16
    assert (np.diff(sample.laws.log_probs.astype(np.float32), axis=1) <= 0).all()


# --- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("top", [1, 3, 8])
def test_draws_follow_the_whole_law_even_where_its_tail_is_not_kept(
    top: int, temperature: float
) -> None:
    draws = 4000
    row = np.random.default_rng(0).normal(0, 1.5, VOCABULARY).astype(np.float32)
    logits = np.repeat(row[None], draws, axis=0)
    laws = TopLaws.of(logits, top)
    uniforms = (np.arange(draws) + 0.5) / draws
    drawn = draw_tokens(logits, laws, np.full(draws, temperature), uniforms)
    law = np.exp(log_softmax(row[None].astype(np.float64) / temperature)[0])
    counts = np.bincount(drawn, minlength=VOCABULARY)
    assert np.abs(counts - law * draws).max() <= 1.5
    assert (draw_tokens(logits, laws, np.zeros(draws), uniforms) == row.argmax()).all()


# --- writing and reading --------------------------------------------------------------------------


def test_answers_carry_the_laws_that_the_target_alone_has(bundle: Path, writer: Writer) -> None:
    items = [Item((0, 5, 1), "a"), Item((4, 2), "b"), Item((1, 1, 2, 7, 6), "c")]
    samples = writer.make_samples(items, seed=[0, 7])
    assert sum(len(sample.laws) for sample in samples) == 3 * 2 * SMALL.answer_tokens
    assert {sample.temperature for sample in samples} == {0.0, 0.7, 1.0}
    by_kind = {item.category: item.ids for item in items}
    ended = 0
    for sample in samples:
        assert tuple(sample.tokens[: sample.start]) == by_kind[sample.category]
        check_laws(bundle, sample)
        answer = sample.tokens[sample.start :].tolist()
        assert len(answer) <= SMALL.answer_tokens
        assert END not in answer[:-1]
        ended += answer[-1] == END and len(answer) < SMALL.answer_tokens
        if sample.temperature == 0:
            assert answer == sample.laws.ids[:, 0].tolist()
    assert ended, "no answer ended early: the test sees nothing of what follows then"
    drawn = [s.tokens[s.start :].tolist() for s in samples if s.temperature == 1]
    likeliest = [s.laws.ids[:, 0].tolist() for s in samples if s.temperature == 1]
    assert drawn != likeliest


def test_given_text_gets_the_laws_of_every_place(bundle: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tools.distill.reading._ROWS", 4)
    texts = Source(batch=3, texts=(Path("text"),), top=VOCABULARY)
    opened = Writer.open(bundle, texts, threads=1)
    random = np.random.default_rng(0)
    items = [Item(tuple(random.integers(0, VOCABULARY, n).tolist()), "text") for n in (13, 6)]
    samples = opened.make_samples(items, seed=[0])
    for item, sample in zip(items, samples, strict=True):
        assert (sample.start, sample.temperature) == (1, GIVEN)
        assert tuple(sample.tokens) == item.ids
        check_laws(bundle, sample)


def test_a_graph_of_one_sequence_or_a_short_context_is_refused(tmp_path: Path) -> None:
    fused = make_bundle(tmp_path / "fused", drafts=0, context=512)
    with pytest.raises(BundleError, match="--flavour portable"):
        Writer.open(fused, SMALL)
    short = make_bundle(tmp_path / "short", drafts=0, context=128, flavour="portable")
    with pytest.raises(ToolError, match=r"128 tokens of context, but 262 .* larger --context"):
        Writer.open(short, SMALL)


# --- prompts --------------------------------------------------------------------------------------


def test_our_prompts_are_many_whole_and_none_that_is_measured_on() -> None:
    prompts = list(islice(make_prompts(0), 2000))
    assert len(set(prompts)) > 1500
    assert prompts == list(islice(make_prompts(0), 2000)) != list(islice(make_prompts(1), 2000))
    assert set(Counter(kind for kind, _ in prompts).values()) <= {285, 286}
    assert not [text for _, text in prompts if "_}" in text or "{verb}" in text or "{1" in text]
    held = {(question.category, question.turns[0]) for question in read_questions()}
    assert {kind for kind, _ in held} == {kind for kind, _ in prompts}
    assert not held & set(prompts)


def test_one_in_ten_of_given_prompts_is_held_out(writer: Writer, tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl")
    for path in (tmp_path / "prompts.jsonl", tmp_path):
        batches = list(islice(make_batches(Source(prompts=path, batch=5), writer), 4))
        assert all(len(batch) == 5 for batch in batches)
        lengths = [sorted({len(item.ids) for item in batch}) for batch in batches]
        assert lengths == [[2, 3, 4, 5, 6], [7, 8, 9, 10, 12], *lengths[:2]]  # not 1 and 11


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"prompts": "one.jsonl"}, "holds no prompt to train on: at least two"),
        ({"prompts": "empty"}, r"is a folder without \*.jsonl files"),
        ({"prompts": "none.jsonl"}, "cannot read the prompts"),
        ({"texts": ["short"]}, "fewer than two pieces of 256 tokens"),
        ({"texts": ["latin"]}, "latin is not UTF-8 at byte 1"),
        ({"texts": ["none"]}, "none cannot be read"),
        ({"texts": ["long"]}, "only 512 tokens to train on: add text, or ask for fewer"),
    ],
)
def test_bad_prompts_and_texts_are_named(
    writer: Writer, tmp_path: Path, source: dict[str, Any], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.jsonl").write_text('{"question_id": 1, "turns": ["a"]}', encoding="utf-8")
    (tmp_path / "short").write_text("ab" * 200, encoding="utf-8")
    (tmp_path / "long").write_text("ab" * 400, encoding="utf-8")
    (tmp_path / "latin").write_bytes(b"a\xe9b")
    named: dict[str, Any] = {
        key: tmp_path / name if key == "prompts" else tuple(tmp_path / n for n in name)
        for key, name in source.items()
    }
    with pytest.raises(ToolError, match=words):
        list(make_batches(Source(batch=4, **named), writer))


# --- the folder -----------------------------------------------------------------------------------


def extend(folder: Path, writer: Writer, tokens: int, source: Source) -> Corpus:
    return extend_corpus(folder, lambda: writer, source, tokens=tokens, progress=QUIET)


def contents(corpus: Corpus) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (*corpus.train, *corpus.held)}


def write_prompts(path: Path) -> Path:
    lines = [f'{{"question_id": {n}, "turns": ["{LETTERS[n % 8] * (n + 1)}"]}}' for n in range(12)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_run_that_was_stopped_goes_on_and_gives_the_same(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = replace(SMALL, prompts=write_prompts(tmp_path / "prompts.jsonl"))
    opened = Writer.open(bundle, source, threads=1)
    whole = extend(tmp_path / "whole", opened, 100, source)
    assert whole.tokens == 108  # three shards of three prompts, twelve tokens each
    assert len(whole.read_train()) >= 9
    assert {len(sample.tokens[: sample.start]) for sample in whole.read_held()} == {1, 11}
    make, asked = Writer.make_samples, []

    def stopped(*args: Any, **options: Any) -> list[Sample]:
        asked.append(1)
        if len(asked) == 3:  # the second shard
            raise KeyboardInterrupt
        return make(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.Writer, "make_samples", stopped)
        with pytest.raises(KeyboardInterrupt):
            extend(tmp_path / "parts", opened, 100, source)
    assert open_corpus(tmp_path / "parts", fingerprint=FINGERPRINT).tokens == 36
    assert contents(extend(tmp_path / "parts", opened, 100, source)) == contents(whole)
    assert whole.digest == open_corpus(tmp_path / "parts", fingerprint=FINGERPRINT).digest


def test_what_is_held_out_by_default_is_of_all_kinds(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.distill.source.LONGEST_PROMPT", 10_000)  # a letter is a token here
    held = make_held_out(Source(), writer)
    assert {item.category for item in held} == {question.category for question in read_questions()}


def test_a_folder_of_other_words_is_refused(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("abcdefgh" * 100, encoding="utf-8")
    source = Source(texts=(tmp_path / "text",), batch=3, top=VOCABULARY)
    writer = Writer.open(bundle, source, threads=1)
    extend(tmp_path, writer, 10, source)
    with pytest.raises(ToolError, match="tokens of another tokenizer than the target's"):
        open_corpus(tmp_path, fingerprint="1" * 64)
    with pytest.raises(ToolError, match=r"begun with another source: .* --data-tokens 0"):
        extend(tmp_path, writer, 500, replace(source, top=4))
    (tmp_path / "corpus.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ToolError, match="another format"):
        open_corpus(tmp_path, fingerprint=FINGERPRINT)
    (tmp_path / "corpus.json").unlink()
    with pytest.raises(ToolError, match=r"no corpus\.json"):
        open_corpus(tmp_path, fingerprint=FINGERPRINT)
    with pytest.raises(ToolError, match="is a file"):
        open_corpus(next(tmp_path.glob("held-*")), fingerprint=FINGERPRINT)


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes: the same failure as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def make_sample(tokens: Sequence[int], start: int) -> Sample:
    laws = TopLaws.of(np.zeros((len(tokens) - start, 4), np.float32), 2)
    return Sample(np.array(tokens, np.int32), start, laws, 0.7, "chat")


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "train-00000.safetensors"
    with full_disk(4096), pytest.raises(PublishError, match=r"cannot write .* no space left"):
        write_samples(path, [make_sample([1] * 5000, 1)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("change", ["cut", "starts", "text"])
def test_a_damaged_file_is_named(tmp_path: Path, change: str) -> None:
    path = tmp_path / "train-00000.safetensors"
    write_samples(path, [make_sample([1, 2, 70000], 0 if change == "starts" else 1)])
    if change != "starts":
        path.write_bytes(path.read_bytes()[:-3] if change == "cut" else b"no such file")
    with pytest.raises(ToolError, match=r"00000.safetensors is damaged .* written again"):
        read_samples(path)


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    samples = [make_sample([1, 2, 3], 1), make_sample([70000, 5], 1)]
    write_samples(tmp_path / "a", samples)
    for before, after in zip(samples, read_samples(tmp_path / "a"), strict=True):
        assert (before.start, before.category) == (after.start, after.category)
        assert after.temperature == pytest.approx(before.temperature)
        assert (before.tokens == after.tokens).all()
        assert (before.laws.ids == after.laws.ids).all()
        assert (before.laws.log_probs == after.laws.log_probs).all()
