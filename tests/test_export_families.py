"""Tiny models of several families: traced, written, opened by the product, equal to PyTorch."""

from pathlib import Path

import onnx
import pytest
import torch
from tiny_exports import FAMILIES, SPECIMENS, checkpoint_of, export_of, model_of, traces_kept
from tiny_models import VOCABULARY, tiny_model, tiny_tokenizer, write_checkpoint
from transformers import AutoConfig, PretrainedConfig

from export import build, parity, passes
from export.attention.fused import FUSED
from export.attention.observe import window_of
from export.attention.portable import PORTABLE, TREES
from export.attention.rehearse import find_manner
from export.errors import ParityError, UnsupportedModelError
from export.pipeline import export_bundle
from export.plan import make_plan
from export.progress import Progress
from export.source_model import context_limit
from export.trace import trace
from runtime import Engine
from tools.families.shrink import POSITIONS
from tools.families.specimen import make_model

QUIET = Progress(quiet=True)


# The standard ops have less to get wrong; a window, a tied head and learned positions matter.
EXPORTS = [
    *((family, "fused") for family in (*FAMILIES, *SPECIMENS)),
    *((family, "portable") for family in ("llama", "gemma3_text", "gpt2", "falcon")),
    ("qwen2", "trees"),
]


def graph_of(family: str, flavour: str = "fused") -> onnx.ModelProto:
    path = export_of(family, flavour=flavour).output / "target" / "model.onnx"
    return onnx.load(path, load_external_data=False)


def ops(graph: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in graph.graph.node]


def attention(graph: onnx.ModelProto) -> list[dict[str, object]]:
    return [
        {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        for node in graph.graph.node
        if node.op_type == "GroupQueryAttention"
    ]


def greedy_of_torch(family: str, ids: list[int], count: int) -> list[int]:
    made: list[int] = []
    with torch.no_grad():
        for _ in range(count):
            logits = model_of(family)(input_ids=torch.tensor([ids + made])).logits[0, -1]
            made.append(int(logits[: tiny_tokenizer().get_vocab_size()].argmax()))
    return made


@pytest.mark.parametrize(("family", "flavour"), EXPORTS)
def test_a_family_without_code_of_its_own_is_right_everywhere(family: str, flavour: str) -> None:
    figures = export_of(family, flavour=flavour).manifest.target.parity
    assert figures["max_error"] < 1e-5
    assert [40, 16] in figures["grid"]
    assert figures["block_error"] == 0  # a token alone and in a block: the same bits


@pytest.mark.parametrize(("family", "flavour"), EXPORTS)
def test_the_engine_writes_what_pytorch_writes(family: str, flavour: str) -> None:
    ids = tiny_tokenizer().encode("the ninth winter on then", add_special_tokens=False).ids
    with Engine.open(export_of(family, flavour=flavour).output, threads=1) as engine:
        made = engine.complete(ids, max_tokens=12, temperature=0, ignore_eos=True).token_ids
    assert list(made) == greedy_of_torch(family, ids, 12)


PLACES = {
    "fused": {"seqlens_k": [1], "total_sequence_length": [1]},
    "portable": {"position_ids": ["batch", "sequence"], "write_indices": ["batch"]},
    "trees": {
        "position_ids": ["batch", "sequence"],
        "write_indices": ["batch"],
        "attention_mask": ["batch", "sequence", "capacity"],
    },
}


@pytest.mark.parametrize(("family", "flavour"), EXPORTS)
def test_sizes_that_vary_are_symbolic_and_the_others_are_not(family: str, flavour: str) -> None:
    graph = graph_of(family, flavour).graph
    shapes = {
        value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    }
    layout = export_of(family, flavour=flavour).manifest.target.cache
    batch = 1 if flavour == "fused" else "batch"
    caches = {
        f"{side}.{layer}.{part}": [batch, heads, "capacity", width]
        for side in ("past", "present")
        for layer, (heads, width) in enumerate(map(layout.shape_of, range(layout.layers)))
        for part in ("key", "value")
    }
    assert shapes == {
        "input_ids": [batch, "sequence"],
        "logit_rows": ["rows"],
        "logits": [1, "rows", VOCABULARY],
        **PLACES[flavour],
        **caches,
    }


def test_only_windows_reach_the_op_that_the_masks_have() -> None:
    assert [layer["local_window_size"] for layer in attention(graph_of("mistral"))] == [16, 16]
    assert all("local_window_size" not in layer for layer in attention(graph_of("llama")))
    windows = [layer.window for layer in find_manner(model_of("gemma3_text")).needs]
    kinds = AutoConfig.from_pretrained(checkpoint_of("gemma3_text")).layer_types
    assert windows == [16 if kind == "sliding_attention" else None for kind in kinds]


def test_a_plain_decoder_is_rotated_and_packed_in_few_ops() -> None:
    graph = graph_of("llama")
    assert all(layer["do_rotary"] == 1 for layer in attention(graph))
    counts = {op: ops(graph).count(op) for op in set(ops(graph))}
    assert counts["MatMul"] == 2 * 5 + 1  # packed q, k, v; output; gate, up, down; and the head
    assert counts["SkipSimplifiedLayerNormalization"] == 2 * 2
    assert "Transpose" not in counts
    assert "ReduceMean" not in counts
    assert "Positions" not in counts


def test_the_portable_graph_holds_standard_ops_alone() -> None:
    graph = graph_of("llama", "portable")
    assert {o.domain: o.version for o in graph.opset_import} == {"": 24}
    assert graph.ir_version == 10
    counts = {op: ops(graph).count(op) for op in set(ops(graph))}
    assert counts["Attention"] == 2
    assert counts["TensorScatter"] == counts["RotaryEmbedding"] == 2 * 2
    assert counts["RMSNormalization"] == 2 * 2 + 1
    assert counts["LessOrEqual"] == 1  # one mask for all layers
    assert "Neg" not in counts  # nothing rotates by halves
    folder = export_of("llama", flavour="portable").output
    onnx.checker.check_model(folder / "target" / "model.onnx")


@pytest.mark.parametrize(("family", "words"), [("gpt_oss", "sinks"), ("mixtral", "mixture")])
def test_what_standard_ops_cannot_say_needs_the_fused_flavour(family: str, words: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{words} .* --flavour fused"):
        trace(model_of(family), PORTABLE)


def test_a_family_that_norms_its_queries_is_rotated_but_not_packed() -> None:
    graph = graph_of("gemma3_text")
    assert all(layer["do_rotary"] == 1 for layer in attention(graph))
    assert ops(graph).count("MatMul") >= 2 * 7


def test_a_family_that_rotates_a_part_keeps_its_own_rotation() -> None:
    assert all("do_rotary" not in layer for layer in attention(graph_of("gpt_neox")))


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_one_matrix_for_embedding_and_head_is_stored_once(family: str) -> None:
    stored = (export_of(family).output / "target" / "target.weights").stat().st_size
    graph = (export_of(family).output / "target" / "model.onnx").stat().st_size
    weights = 4 * export_of(family).manifest.target.parameters
    assert weights <= stored + graph < 1.1 * weights + 64_000  # 64 kB: the graph itself


def test_low_versions_are_declared_and_nothing_of_this_machine() -> None:
    content = (export_of("llama").output / "target" / "model.onnx").read_bytes()
    graph = onnx.ModelProto.FromString(content)
    assert graph.ir_version == 8
    assert {o.domain: o.version for o in graph.opset_import} == {"": 18, "com.microsoft": 1}
    assert b"site-packages" not in content
    assert str(Path(__file__).parent).encode() not in content


def test_a_speed_pass_that_breaks_parity_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def rotate_wrongly(model: object, *, context: int) -> int:
        changed = passes.rotary.rotate_in_attention(model, context=context)
        for node in model.graph:
            if node.op_type == "GroupQueryAttention":
                node.replace_input_with(7, node.inputs[8])  # sine for cosine
        return changed

    monkeypatch.setattr(passes, "rotate_in_attention", rotate_wrongly)
    plan = make_plan(
        target=str(checkpoint_of("llama")), output=tmp_path / "out", precision="float32"
    )
    with traces_kept("llama"):
        report = export_bundle(plan, progress=QUIET)
    assert report.manifest.target.parity["max_error"] < 1e-5
    assert any("rotation by one op" in note for note in report.notes)


def test_a_graph_that_computes_something_else_is_not_published(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(parity, "TOLERANCE", 1e-12)
    monkeypatch.setattr(build, "VARIANTS", build.VARIANTS[-1:])
    plan = make_plan(target=str(checkpoint_of("gpt2")), output=tmp_path / "out")
    words = r"differs from PyTorch by .* for 1 new tokens"
    with traces_kept("gpt2"), pytest.raises(ParityError, match=words):
        export_bundle(plan, progress=QUIET)
    assert list(tmp_path.iterdir()) == []


MANNERS = {
    "llama": ("op", "given", 0),
    "bart": ("op", "length", 0),
    "roberta": ("op", "given", 2),  # behind the row of the padding, which is 1
    "falcon": ("own", "given", 0),
    "bloom": ("own", "length", 0),
    "llama4_text": ("own", "given", 0),  # masks in chunks
}


@pytest.mark.parametrize("family", MANNERS)
def test_how_a_model_goes_on_is_found_by_trying(family: str) -> None:
    attends, positions, offset = MANNERS[family]
    manner = find_manner(make_model(family))
    assert (manner.is_own, manner.positions, manner.offset) == (attends == "own", positions, offset)
    assert len(manner.caches) == 2


def test_a_learned_table_leaves_the_context_what_its_first_rows_leave() -> None:
    assert export_of("roberta").manifest.target.context == POSITIONS - 2


def test_wide_keys_and_layers_of_their_own_shape_have_caches_that_fit() -> None:
    assert [shape.head_dim for shape in find_manner(model_of("deepseek_v3")).caches] == [24, 24]
    layout = export_of("gemma4_text").manifest.target.cache
    assert layout.shapes == ((2, 16), (2, 32))


REFUSED = {
    "bert": "BertSelfAttention is not causal",  # no decoder unless its config says so
    "mamba": "its MambaMixer lets tokens meet in a way of its own",
    "falcon_h1": "its FalconH1Mixer lets tokens meet",
    "lfm2": "its Lfm2ShortConv lets tokens meet",
    "doge": "changes its attention mask",
}


@pytest.mark.parametrize("family", REFUSED)
def test_a_family_that_does_not_fit_is_refused_with_the_reason(family: str) -> None:
    model = tiny_model(family) if family == "bert" else make_model(family)
    with pytest.raises(UnsupportedModelError, match=REFUSED[family]):
        trace(model, FUSED)


def test_what_one_row_of_a_batch_cannot_have_of_its_own_is_refused_there() -> None:
    with pytest.raises(UnsupportedModelError, match="one for all texts of a batch"):
        trace(model_of("bart"), PORTABLE)
    with pytest.raises(UnsupportedModelError, match="makes its own masks"):
        trace(model_of("falcon"), TREES)


def test_the_rule_of_a_mask_says_what_it_is() -> None:
    def chunked(batch: int, head: int, query: int, key: torch.Tensor) -> torch.Tensor:
        return (key // 4 == query // 4) & (key <= query)

    assert window_of(lambda b, h, q, k: k <= q, None) is None
    assert window_of(lambda b, h, q, k: (k <= q) & (k > q - 4), 4) == 4
    with pytest.raises(UnsupportedModelError, match="chunked"):
        window_of(chunked, 4)
    with pytest.raises(UnsupportedModelError, match="neither causal"):
        window_of(lambda b, h, q, k: k >= 0, None)
    with pytest.raises(UnsupportedModelError, match="neither causal"):  # one token less
        window_of(lambda b, h, q, k: (k <= q) & (k > q - 3), 4)


def test_rotary_factors_that_change_with_length_cap_the_context(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 96,
    }
    model = tiny_model(
        "phi3",
        max_position_embeddings=512,
        original_max_position_embeddings=96,
        rope_parameters=rope,
    )
    limit = context_limit(model.config)
    assert limit.tokens == 96
    assert "96 of 512" in limit.notes[0]
    plan = make_plan(
        target=str(write_checkpoint(tmp_path / "checkpoint", model)),
        output=tmp_path / "out",
        precision="float32",
    )
    report = export_bundle(plan, progress=QUIET)
    assert report.manifest.target.context == 96
    assert report.manifest.target.parity["max_error"] < 1e-5
    assert any("capped at 96" in note for note in report.notes)


def test_a_config_without_a_limit_is_given_one_and_says_so() -> None:
    limit = context_limit(PretrainedConfig())
    assert limit.tokens == 4096
    assert "no context limit" in limit.notes[0]
