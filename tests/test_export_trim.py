"""Drafts whose heads know few tokens: which, and that they compute what the whole head does."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_exports import checkpoint_of, export_of
from tiny_models import tiny_model, tiny_tokenizer
from torch import nn

from export.__main__ import main
from export.checkpoint import resolve
from export.errors import PlanError, UnsupportedModelError
from export.language import Language, language_of, read_language
from export.pipeline import add_drafts
from export.plan import Trim, make_add_plan, make_plan, make_trim
from export.progress import Progress
from export.shortlist import choose_tokens, order_by_use, rank_tokens
from export.trim import trim_head
from runtime import Engine
from runtime.bundle import open_bundle
from runtime.vocabulary import Vocabulary

QUIET = Progress(quiet=True)
ADDED = {0, 1, 2}
SIZE = tiny_tokenizer().get_vocab_size()


@pytest.fixture(scope="module")
def language() -> Language:
    return read_language(resolve(str(checkpoint_of("llama")), progress=QUIET))


def choose(language: Language, **trim: Any) -> list[int]:
    return choose_tokens(Trim(**trim), language, progress=QUIET).tolist()


# --- which tokens ---------------------------------------------------------------------------------


def test_without_counts_the_tokenizers_own_order_decides(language: Language) -> None:
    vocab = tiny_tokenizer().get_vocab()
    # Three added tokens, 256 bytes, then the merges in the order in which they were learnt.
    kept = choose(language, size=3 + 256 + 2)
    assert kept == sorted([*range(3 + 256), vocab["er"], vocab["th"]])


def test_the_tokens_of_a_text_come_first(language: Language, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("anonanonq", encoding="utf-8")
    vocab = tiny_tokenizer().get_vocab()
    kept = choose(language, size=3 + 3, texts=(tmp_path / "a.txt",))
    assert kept == sorted([*ADDED, vocab["an"], vocab["on"], vocab["q"]])
    (tmp_path / "counts").write_text(
        f"# tokenizer {language.fingerprint}\n\n{vocab['z']} 9  # rare\n{vocab['an']} 1\n",
        encoding="utf-8",
    )
    both = choose(language, size=3 + 2, texts=(tmp_path / "a.txt",), counts=(tmp_path / "counts",))
    assert both == sorted([*ADDED, vocab["an"], vocab["z"]])


def test_what_a_text_shows_once_does_not_push_out_what_every_text_shows(
    language: Language,
) -> None:
    vocab = tiny_tokenizer().get_vocab()
    often, rare, common = vocab["on"], vocab["an"], min(vocab[c] for c in "!#$%&")
    order = order_by_use(language, {often: 10**6, rare: 1})
    assert order.index(often) < order.index(common) < order.index(rare)
    assert order_by_use(language, {rare: 1})[0] == rare


def test_a_list_is_kept_as_it_is_with_what_is_always_in(language: Language, tmp_path: Path) -> None:
    (tmp_path / "list").write_text("40\n7 3\n40\n", encoding="utf-8")
    assert choose(language, listed=tmp_path / "list") == [*sorted(ADDED), 7, 40]
    more = replace(language, end_ids=(1, 90), bos_id=80)
    assert choose(more, listed=tmp_path / "list") == [*sorted(ADDED), 7, 40, 80, 90]


def test_ranks_come_from_merges_scores_or_ids() -> None:
    tokens = {0: "<0x0A>", 1: "a", 2: "b", 3: "[PAD3]", 4: "abab", 5: "ab"}
    merges = Vocabulary(tokens, [["a", "b"], ["ab", "ab"], ["a", "b"]], {})
    assert sorted(tokens, key=rank_tokens(merges).__getitem__) == [0, 1, 2, 5, 4, 3]
    scored = Vocabulary(tokens, [-3.0, -1.0, -2.0, -9.0, -4.0, -5.0], {})
    assert sorted(tokens, key=rank_tokens(scored).__getitem__) == [1, 2, 0, 4, 5, 3]
    assert sorted(tokens, key=rank_tokens(Vocabulary(tokens, [], {})).__getitem__) == list(tokens)


@pytest.mark.parametrize("size", [0, 3, SIZE, SIZE + 1])
def test_a_number_must_leave_room_and_leave_some_out(language: Language, size: int) -> None:
    words = f"must be above 3, .* and below the vocabulary's {SIZE}, but is {size}"
    with pytest.raises(PlanError, match=words):
        choose(language, size=size)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"5\nfive\n", "line 2: expected a token id, or an id and a count, but found 'five'"),
        (b"5 6 7\n", "line 1: expected a token id"),
        (b"-1\n", "line 1: expected a token id"),
        (b"[5, 6]", "line 1: expected a token id"),
        (b"99999\n", f"line 1: token 99999 lies outside the target's vocabulary of {SIZE} tokens"),
        (b"# nothing\n", "lists no token"),
        (b"\xff\xfe5", "cannot be read as UTF-8 text"),
        (b"# tokenizer 0000\n5\n", "counts the tokens of another tokenizer than the target's"),
    ],
)
def test_a_bad_list_is_refused_by_file_and_line(
    language: Language, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "list").write_bytes(content)
    with pytest.raises(PlanError, match=f"list.*{words}".replace("[", r"\[")):
        choose(language, listed=tmp_path / "list")


def test_a_text_that_cannot_be_read_is_named(language: Language, tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(PlanError, match=f"{path.name} cannot be read as UTF-8 text"):
            choose(language, size=10, texts=(path,))


def test_options_that_make_no_plan_are_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("5\n", encoding="utf-8")
    assert make_trim(None) is None
    assert make_trim("12") == Trim(size=12)
    assert make_trim(str(tmp_path / "list")) == Trim(listed=tmp_path / "list")
    with pytest.raises(PlanError, match="--vocab-text is given, but no --draft-vocab"):
        make_trim(None, texts=[tmp_path])
    with pytest.raises(PlanError, match=r"--vocab-counts helps to choose tokens, but .*list lists"):
        make_trim(str(tmp_path / "list"), counts=[tmp_path])
    with pytest.raises(
        PlanError, match="a number of tokens or a file that lists them, but is '-3'"
    ):
        make_trim("-3")
    with pytest.raises(PlanError, match="no --draft: a target's head is never trimmed"):
        make_plan(target="t", output=tmp_path, trim=Trim(size=12))


# --- what the trimmed head computes ---------------------------------------------------------------


@pytest.mark.parametrize(("family", "has_bias"), [("qwen2", False), ("phi", True)])
def test_a_trimmed_head_keeps_its_rows_and_leaves_the_embedding(
    family: str, has_bias: bool
) -> None:
    model = tiny_model(family, tie_word_embeddings=not has_bias)
    ids, kept = torch.tensor([[5, 9, 2]]), np.array([0, 7, 9, 200])
    if has_bias:
        model.get_output_embeddings().bias.data.normal_()
    with torch.no_grad():
        before = model(ids).logits
        trim_head(model, kept)
        after = model(ids).logits
    assert after.shape == (1, 3, 4)
    torch.testing.assert_close(after, before[..., torch.from_numpy(kept)])
    assert model.get_input_embeddings().weight.shape[0] == 300


def test_a_head_of_another_kind_is_refused() -> None:
    model = tiny_model("llama")
    model.set_output_embeddings(nn.Sequential(model.get_output_embeddings()))
    with pytest.raises(UnsupportedModelError, match="'llama' cannot be trimmed"):
        trim_head(model, np.array([1]))


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tied target's own checkpoint as a float draft, and another in int4: 64 tokens each."""
    folder = tmp_path_factory.mktemp("trimmed") / "bundle"
    shutil.copytree(export_of("qwen2").output, folder)
    for family, precision in (("qwen2", "float32"), ("llama", "int4")):
        made = make_add_plan(
            output=folder,
            drafts=[str(checkpoint_of(family))],
            name=family,
            precision=precision,
            trim=Trim(size=64),
        )
        add_drafts(made, progress=QUIET)
    return folder


def test_a_trimmed_draft_scores_as_its_checkpoint_does(trimmed: Path) -> None:
    bundle = open_bundle(trimmed, verify_hashes=True)
    kept = choose(language_of(bundle), size=64)
    with Engine.open(trimmed) as engine:
        tokens = engine.encode("the one")
        wanted = engine.target.score(tokens, 3)
        found = engine.drafts["qwen2"].score(tokens, 3)
        assert found.shape == wanted.shape
        assert np.isfinite(found).sum(axis=1).tolist() == [64] * 3
        np.testing.assert_allclose(found[:, kept], wanted[:, kept], atol=1e-5)


def test_what_was_trimmed_is_written_down_and_told(trimmed: Path) -> None:
    bundle = open_bundle(trimmed)
    for draft in bundle.manifest.drafts:
        assert (draft.logits, draft.token_ids) == (64, f"{draft.name}/token_ids.npy")
        assert draft.embeddings == 300
        assert 0 < draft.parity["kept_mass"] < 1
        assert draft.parity["max_error"] < 1e-5
    assert bundle.manifest.target.logits == 300
    sizes = {file.path: file.bytes for file in bundle.manifest.files}
    assert sizes["qwen2/token_ids.npy"] == 128 + 4 * 64


def test_answers_are_the_targets_with_any_trimmed_draft(trimmed: Path) -> None:
    with Engine.open(trimmed) as engine:
        for options in ({"temperature": 0.0}, {"temperature": 1.0, "coupled": True, "seed": 3}):
            plain = engine.complete("the one", max_tokens=20, speculate="off", **options)
            for name in ("qwen2", "llama"):
                other = engine.complete("the one", max_tokens=20, stages=[name], k=2, **options)
                assert other.token_ids == plain.token_ids
                assert other.stats.drafted > 0


def test_the_command_trims_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], trimmed: Path
) -> None:
    folder = shutil.copytree(trimmed, tmp_path / "bundle")
    arguments = ["--add-draft", str(checkpoint_of("llama")), "--output", str(folder), "--quiet"]
    assert main([*arguments, "--draft-vocab", "2"]) == 2
    assert "--draft-vocab must be above 3" in capsys.readouterr().err
    assert main([*arguments, "--vocab-text", "x"]) == 2
    assert "no --draft-vocab N" in capsys.readouterr().err
    assert json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["models"][3:] == []
