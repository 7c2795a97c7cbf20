"""Heads trimmed to few tokens: each column is its token, every other token is impossible."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.bundle import open_bundle
from runtime.columns import read_token_ids
from runtime.describe import describe_bundle
from runtime.errors import BundleError
from runtime.manifest import MANIFEST_NAME, Manifest, dump_manifest, parse_manifest

KEPT = (1, 2, 6)
PROMPT = "abcabca"
BANNED = dict.fromkeys(KEPT, -math.inf)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("trimmed") / "bundle", kept=KEPT)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Any:
    with Engine.open(folder) as opened:
        yield opened


def test_rows_are_those_of_the_whole_head_and_minus_infinity_elsewhere(
    engine: Engine, tmp_path: Path
) -> None:
    tokens = engine.encode(PROMPT)
    others = [t for t in range(engine.target.vocabulary) if t not in KEPT]
    with Engine.open(make_bundle(tmp_path / "whole")) as whole:
        for rows in (1, 4, 2):
            wanted = whole.drafts["draft"].score(tokens, rows)
            found = engine.drafts["draft"].score(tokens, rows)
            assert found.shape == wanted.shape
            assert (found[:, KEPT] == wanted[:, KEPT]).all()
            assert (found[:, others] == -math.inf).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logit_bias": {0: 2.0, 1: -1.0}},
        {"min_tokens": 8},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"logit_bias": BANNED},  # the draft has nothing left to say
        {"temperature": 1.0, "coupled": True},
        {"temperature": 0.7, "coupled": True, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
        {"temperature": 1.0, "coupled": True, "logit_bias": BANNED},
    ],
)
def test_answers_are_the_same_with_a_trimmed_draft_and_without_one(
    engine: Engine, options: Any
) -> None:
    options = {"temperature": 0.0, "seed": 5, "max_tokens": 24} | options
    plain = engine.complete(PROMPT, speculate="off", **options)
    for k in (1, 3):
        other = engine.complete(PROMPT, stages=["draft"], k=k, **options)
        assert other.token_ids == plain.token_ids
        assert (other.stats.drafted > 0) == (options.get("logit_bias") != BANNED)


def test_a_trimmed_draft_is_told_of_in_words(folder: Path) -> None:
    text = "\n".join(describe_bundle(open_bundle(folder)))
    assert text.count("head    ") == 1
    assert "head          trimmed to 3 of 8 tokens" in text


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.int32([1, 6, 2]), "is not in that order"),
        (np.int32([1, 2, 2]), "is not in that order"),
        (np.int32([1, 2]), "lists 2"),
        (np.int32([1, 2, 8]), "holds ids from 1 to 8"),
        (np.int32([-1, 2, 6]), "holds ids from -1 to 6"),
        (np.uint64([1, 2, 2**63]), "holds ids from 1 to"),
        (np.float32([1, 2, 6]), "holds something else"),
        (np.int32([[1, 2, 6]]), "holds something else"),
    ],
)
def test_a_wrong_map_is_refused(folder: Path, tmp_path: Path, ids: Any, words: str) -> None:
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(BundleError, match=f"3 token ids below 8 in ascending order, but {words}"):
        read_map(folder, tmp_path, "ids.npy")


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"[1, 2, 6]", b"\x80\x04N."])
def test_a_file_that_is_no_map_is_refused(folder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ids").write_bytes(content)
    with pytest.raises(BundleError, match=r"ids is no \.npy file of token ids"):
        read_map(folder, tmp_path, "ids")


def read_map(folder: Path, place: Path, name: str) -> None:
    bundle = open_bundle(folder)
    draft = replace(bundle.manifest.drafts[0], token_ids=name)
    read_token_ids(replace(bundle, folder=place), draft)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda raw: raw["models"][0].update(token_ids="target/x"),
            "target must not have token_ids",
        ),
        (lambda raw: raw["models"][1].update(logits=9), "at most the tokenizer's 8 tokens"),
        (lambda raw: raw["models"][1].update(embeddings=7), "draft knows 7 tokens"),
        (lambda raw: raw["models"][1].update(token_ids=None), "draft knows 3 tokens"),
        (lambda raw: raw["models"][1].update(token_ids=3), "token_ids must be str"),
    ],
)
def test_a_manifest_that_trims_what_may_not_be_is_refused(
    folder: Path, change: Callable[[Any], None], words: str
) -> None:
    raw = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    change(raw)
    with pytest.raises(BundleError, match=words):
        parse_manifest(json.dumps(raw))


def test_a_map_is_among_the_files_that_are_checked(folder: Path, tmp_path: Path) -> None:
    manifest: Manifest = open_bundle(folder).manifest
    assert "draft/token_ids.npy" in [file.path for file in manifest.files]
    listed = tuple(file for file in manifest.files if "token_ids" not in file.path)
    for file in manifest.files:
        (tmp_path / file.path).parent.mkdir(exist_ok=True)
        (tmp_path / file.path).write_bytes((folder / file.path).read_bytes())
    text = dump_manifest(replace(manifest, files=listed))
    (tmp_path / MANIFEST_NAME).write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=r"refers to 'draft/token_ids\.npy' but does not list it"):
        open_bundle(tmp_path)
