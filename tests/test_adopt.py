"""Decoders that other exporters wrote: recognised, copied as they are, right in blocks, refused."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from tiny_adopted import CONTEXT, Kind, change_graph, write_decoder
from tiny_exports import checkpoint_of
from tiny_models import VOCABULARY

from export.checkpoint import resolve
from export.decoder import read_decoder
from export.errors import CheckpointError, ParityError, PlanError, UnsupportedModelError
from export.pipeline import add_drafts, export_bundle
from export.plan import make_add_plan, make_plan
from export.progress import Progress
from export.report import Report
from runtime import Engine
from runtime.bundle import open_bundle
from runtime.model import OnnxModel

QUIET = Progress(quiet=True)
KINDS: tuple[Kind, ...] = ("shared", "growing")
TEXT = [5, 40, 7, 200, 31, 8, 120, 60, 9]


def adopt(folder: Path, output: Path, **options: object) -> Report:
    return export_bundle(make_plan(target=str(folder), output=output, **options), progress=QUIET)


def model_of(bundle: Path) -> OnnxModel:
    entry = open_bundle(bundle).manifest.target
    return OnnxModel.open(bundle / entry.graph, entry)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_is_adopted_as_it_is(kind: Kind, tmp_path: Path) -> None:
    graph = write_decoder(tmp_path / "made", kind, is_external=True)
    report = adopt(tmp_path / "made", tmp_path / "out")
    entry = report.manifest.target
    assert (entry.flavour, entry.precision, entry.logits) == (kind, "float32", VOCABULARY)
    assert (entry.cache.layers, entry.cache.kv_heads, entry.cache.head_dim) == (1, 1, 16)
    assert entry.context == CONTEXT
    assert entry.architecture == "llama"
    assert report.manifest.end_ids == (1,)
    assert entry.parity["block_error"] < 1e-5
    for name in ("model.onnx", "model.onnx.data"):
        copied = tmp_path / "out" / "target" / name
        assert copied.read_bytes() == (graph.parent / name).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_an_adopted_graph_scores_a_text_the_same_in_any_pieces(kind: Kind, tmp_path: Path) -> None:
    write_decoder(tmp_path / "made", kind)
    adopt(tmp_path / "made", tmp_path / "out")
    model = model_of(tmp_path / "out")
    whole = model.score(TEXT, len(TEXT)).copy()
    assert whole.shape == (len(TEXT), VOCABULARY)
    model.rewind(to=3)
    np.testing.assert_allclose(model.score(TEXT[:5], 2), whole[3:5], atol=1e-5)
    np.testing.assert_allclose(model.score(TEXT, 4), whole[5:], atol=1e-5)
    other = [*TEXT[:4], 77, 78]
    model.rewind(to=4)
    np.testing.assert_allclose(model.score(TEXT, 5), whole[4:], atol=1e-5)
    model.rewind(to=4)
    assert np.abs(model.score(other, 2)[1] - whole[5]).max() > 0.1


def test_both_ways_of_keeping_caches_score_alike(tmp_path: Path) -> None:
    scored = []
    for kind in KINDS:
        write_decoder(tmp_path / kind, kind)
        adopt(tmp_path / kind, tmp_path / f"{kind}-out")
        scored.append(model_of(tmp_path / f"{kind}-out").score(TEXT, len(TEXT)).copy())
    np.testing.assert_allclose(*scored, atol=1e-5)


@pytest.mark.parametrize(("target", "draft"), [("shared", "growing"), ("growing", "shared")])
def test_adopted_models_speculate_for_each_other(target: Kind, draft: Kind, tmp_path: Path) -> None:
    write_decoder(tmp_path / "target", target)
    write_decoder(tmp_path / "draft", draft, distance=0.2)
    adopt(tmp_path / "target", tmp_path / "out", drafts=[str(tmp_path / "draft")])
    with Engine.open(tmp_path / "out", threads=1) as engine:
        options = {"max_tokens": 30, "temperature": 0, "ignore_eos": True}
        plain = engine.complete(TEXT, speculate="off", **options)
        fast = engine.complete(TEXT, stages=["draft"], speculate="k=3", **options)
    assert fast.token_ids == plain.token_ids
    assert 1.2 < fast.stats.mean_accepted_length <= 4


def test_an_adopted_draft_joins_an_exported_target(tmp_path: Path) -> None:
    export_bundle(
        make_plan(target=str(checkpoint_of("llama")), output=tmp_path / "out", precision="float32"),
        progress=QUIET,
    )
    write_decoder(tmp_path / "draft", "growing")
    plan = make_add_plan(output=tmp_path / "out", drafts=[str(tmp_path / "draft")])
    manifest = add_drafts(plan, progress=QUIET).manifest
    assert [model.flavour for model in manifest.models] == ["fused", "growing"]
    with Engine.open(tmp_path / "out", threads=1) as engine:
        options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
        plain = engine.complete(TEXT, speculate="off", **options).token_ids
        assert (
            engine.complete(TEXT, stages=["draft"], speculate="k=2", **options).token_ids == plain
        )


def test_a_graph_that_is_wrong_in_blocks_is_not_published(tmp_path: Path) -> None:
    write_decoder(tmp_path / "made", "growing", is_blind=True)
    with pytest.raises(ParityError, match=r"differs from its own single steps .* 7 new tokens"):
        adopt(tmp_path / "made", tmp_path / "out")
    assert not (tmp_path / "out").exists()


REFUSED = {
    "no cache": ({"past_key_values_0_key": "a", "past_key_values_0_value": "b"}, "takes no cache"),
    "half a cache": ({"past_key_values_0_key": "a"}, r"lacks the input past_key_values\.0\.key"),
    "two graphs": ({"position_ids": "use_cache_branch"}, "two graphs behind"),
    "embeddings": ({"input_ids": "inputs_embeds"}, "takes embeddings"),
    "encoder": ({"position_ids": "encoder_attention_mask"}, "encoder-decoder"),
    "more": ({"position_ids": "image_sizes"}, "has the input image_sizes"),
    "no logits": ({"logits": "scores"}, "lacks the output logits"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_graph_that_is_no_such_decoder_is_refused(what: str, tmp_path: Path) -> None:
    names, words = REFUSED[what]
    change_graph(write_decoder(tmp_path / "made", "growing"), **names)
    with pytest.raises(UnsupportedModelError, match=words):
        read_decoder(resolve(str(tmp_path / "made"), progress=QUIET))


def test_files_that_are_missing_or_many_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    path = write_decoder(folder, "growing", is_external=True)
    (folder / "model.onnx.data").rename(folder / "moved")
    with pytest.raises(CheckpointError, match=r"needs its weights model\.onnx\.data"):
        adopt(folder, tmp_path / "out")
    path.write_bytes(b"no graph")
    with pytest.raises(CheckpointError, match="cannot be read as ONNX"):
        adopt(folder, tmp_path / "out")
    (folder / "model_q4.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"several ONNX graphs \(model\.onnx, model_q4"):
        adopt(folder, tmp_path / "out")


def test_a_graph_may_lie_below_its_tokenizer_and_be_named_itself(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "made", "growing")
    below = tmp_path / "made" / "onnx" / "model.onnx"
    below.parent.mkdir()
    path.rename(below)
    for reference in (tmp_path / "made", below):
        found = resolve(str(reference), progress=QUIET)
        assert (found.form, found.path.name, found.graph) == ("onnx", "made", below)


def test_what_a_generator_says_of_a_model_counts(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "made", "shared")
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        if "0." in value.name:
            value.type.tensor_type.shape.dim[3].dim_param = "kv_cache_dim"
    onnx.save(model, path)
    (tmp_path / "made" / "config.json").unlink()
    decoder = {"head_size": 16, "num_key_value_heads": 1}
    told = {"type": "qwen2", "context_length": 96, "eos_token_id": [1, 2], "decoder": decoder}
    (tmp_path / "made" / "genai_config.json").write_text(json.dumps({"model": told}))
    manifest = adopt(tmp_path / "made", tmp_path / "out").manifest
    assert manifest.end_ids == (1, 2)
    assert (manifest.target.context, manifest.target.architecture) == (96, "qwen2")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "int8"}, "--precision does not go with"),
        ({"flavour": "portable"}, "--flavour does not go with"),
        ({"block_size": 64}, "--block-size does not go with"),
        ({"context": 1024}, "--context 1024 exceeds .* 128 tokens"),
    ],
)
def test_what_a_finished_graph_cannot_be_given_is_refused(
    options: dict[str, object], words: str, tmp_path: Path
) -> None:
    write_decoder(tmp_path / "made", "shared")
    with pytest.raises((PlanError, UnsupportedModelError), match=words):
        adopt(tmp_path / "made", tmp_path / "out", **options)


def test_a_cache_that_something_else_reads_too_is_not_shared(tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "made", "shared")
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Identity", ["past_key_values.0.key"], ["idle"]))
    onnx.save(model, path)
    assert adopt(tmp_path / "made", tmp_path / "out").manifest.target.flavour == "growing"
