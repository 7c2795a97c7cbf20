"""Quantised weights: the bytes mean to ONNX Runtime what they mean here."""

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tiny_exports import FAMILIES, export_of, model_of, traced_again

from export import build
from export.blocks import Blocks, quantize_matrix
from export.importance import measure_importance
from export.passes import SpeedPasses, prepare
from export.passes.linear import find_linears
from export.passes.pattern import source_name
from export.quantize import INT4_LADDER, Storage, make_ladder, quantize_model
from runtime import Engine

SHAPES = [(48, 64), (96, 192), (33, 72)]  # the last: no whole blocks, odd rows


def dequantize_matrix(blocks: Blocks) -> NDArray[np.float32]:
    """Return the matrix `[N, K]` that the kernel should compute with."""
    rows, count, _ = blocks.packed.shape
    codes = blocks.packed
    zeros = np.full((rows, count), 1 << (blocks.bits - 1), np.uint8)
    if blocks.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, count, -1)
        if blocks.zeros is not None:
            halves = np.stack([blocks.zeros & 15, blocks.zeros >> 4], axis=-1)
            zeros = halves.reshape(rows, -1)[:, :count]
    values = codes.astype(np.float32) - zeros[..., None]
    values *= blocks.scales[..., None]
    return values.reshape(rows, -1)[:, : blocks.columns]


def weights(rows: int, columns: int) -> NDArray[np.float32]:
    return np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)


def run(op: str, first: NDArray, blocks: Blocks, **attributes: int) -> NDArray[np.float32]:
    """Run one contrib op over the blocks; they are its constants."""
    tables = {"packed": blocks.packed, "scales": blocks.scales}
    if blocks.zeros is not None:
        tables["zeros"] = blocks.zeros
    order = ["first", *tables]
    if op == "GatherBlockQuantized":
        tables["packed"] = blocks.packed.reshape(len(blocks.packed), -1)
        order[:2] = order[1::-1]
    sizes = {"bits": blocks.bits, "block_size": blocks.block_size}
    node = helper.make_node(op, order, ["out"], domain="com.microsoft", **sizes, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(
                "first", helper.np_dtype_to_tensor_dtype(first.dtype), None
            )
        ],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tables.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    result: NDArray[np.float32] = session.run(None, {"first": first})[0]
    return result


@pytest.mark.parametrize(("bits", "limit"), [(4, 0.11), (8, 0.008)])
@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_what_is_stored_is_close_to_what_was(
    bits: int, limit: float, block_size: int, rows: int, columns: int
) -> None:
    weight = weights(rows, columns)
    blocks = quantize_matrix(weight, bits=bits, block_size=block_size)
    error = np.linalg.norm(dequantize_matrix(blocks) - weight) / np.linalg.norm(weight)
    assert error < limit


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block_size", [16, 32, 128])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_product_kernel_reads_the_blocks_as_they_are_meant(
    bits: int, block_size: int, rows: int, columns: int
) -> None:
    blocks = quantize_matrix(weights(rows, columns), bits=bits, block_size=block_size)
    source = weights(5, columns)
    found = run("MatMulNBits", source, blocks, K=columns, N=rows)
    np.testing.assert_allclose(found, source @ dequantize_matrix(blocks).T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_the_embedding_kernel_reads_the_same_bytes(bits: int, rows: int, columns: int) -> None:
    blocks = quantize_matrix(weights(rows, columns), bits=bits, block_size=32)
    ids = np.array([[0, rows - 1, 7]])
    found = run("GatherBlockQuantized", ids, blocks, gather_axis=0, quantize_axis=1)
    expected = dequantize_matrix(blocks)[ids]
    np.testing.assert_allclose(found[..., :columns], expected, rtol=1e-6)
    assert not found[..., columns:].any()  # the last block's padding


def test_int4_without_zero_points_is_nearly_as_close() -> None:
    weight = weights(96, 192)
    blocks = quantize_matrix(weight, bits=4, block_size=64, is_symmetric=True)
    assert blocks.zeros is None
    error = np.linalg.norm(dequantize_matrix(blocks) - weight) / np.linalg.norm(weight)
    assert error < 0.12
    lopsided = quantize_matrix(-np.abs(weight), bits=4, block_size=64, is_symmetric=True)
    codes = np.stack([lopsided.packed & 15, lopsided.packed >> 4])
    assert codes.min() == 0  # the sixteenth step, on the long side


def test_int4_by_standard_ops_is_the_checkpoints_weights() -> None:
    report = export_of("qwen2", "int4", flavour="portable")
    graph = onnx.load(report.output / "target" / "model.onnx")
    assert {o.domain for o in graph.opset_import} == {""}
    onnx.checker.check_model(graph)
    stored = {tensor.name: tensor for tensor in graph.graph.initializer}
    sizes, errors = set(), []
    checkpoint = model_of("qwen2").state_dict()
    for node in graph.graph.node:
        if node.op_type != "DequantizeLinear":
            continue
        codes, scales = (numpy_helper.to_array(stored[name]) for name in node.input)
        size = {a.name: a.i for a in node.attribute}["block_size"]
        found = codes.astype(np.float32) * np.repeat(scales, size, axis=0)
        wanted = checkpoint[source_name(node.input[0])].numpy().T
        errors.append(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))
        sizes.add(size)
    assert len(errors) == 2 * 7 + 1
    assert max(errors) < 0.12
    assert sizes == {64, 32}  # whole blocks of 64 and of 96 features
    assert report.manifest.target.parity["mean_kl"] < 0.2
    tables = [t for t in stored.values() if t.data_type == TensorProto.FLOAT16]
    assert [list(t.dims) for t in tables] == [[300, 64]]  # the embedding, and nothing else


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_of_zero_stay_zero(bits: int) -> None:
    weight = weights(4, 64)
    weight[1] = 0
    weight[2, :32] = 0
    stored = dequantize_matrix(quantize_matrix(weight, bits=bits, block_size=32))
    assert not stored[1].any()
    assert not stored[2, :32].any()
    assert np.isfinite(stored).all()


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    blocks = quantize_matrix(weights(96, 192), bits=4, block_size=32)
    rows = weights(8, 192)
    rows[3] *= 1e4  # one scale for all rows would ruin the others
    sizes = {"K": 192, "N": 96, "accuracy_level": 4}
    together = run("MatMulNBits", rows, blocks, **sizes)
    alone = np.concatenate([run("MatMulNBits", row[None], blocks, **sizes) for row in rows])
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
def test_every_weight_of_a_layer_is_quantised_and_a_shared_one_is_stored_once(family: str) -> None:
    traced = traced_again(family)
    prepare(traced.graph, context=128, speed=SpeedPasses())
    quantize_model(traced.graph, bits=4, storage=Storage(32))
    ops = [node.op_type for node in traced.graph.graph]
    assert "MatMul" not in ops
    assert "Gemm" not in ops
    assert ops.count("GatherBlockQuantized") == 1
    names = [name for name in traced.graph.graph.initializers if name.endswith("#packed")]
    sizes = [traced.graph.graph.initializers[n].const_value.size for n in names]
    assert ops.count("MatMulNBits") == 2 * (5 if family != "gpt2" else 4) + 1
    tied = family != "llama"
    assert len(sizes) == ops.count("MatMulNBits") + (0 if tied else 1)


@pytest.mark.parametrize(
    ("precision", "flavour"), [("int8", "fused"), ("float16", "fused"), ("float16", "portable")]
)
def test_other_precisions_pass_the_gate_and_generate(precision: str, flavour: str) -> None:
    report = export_of("qwen2", precision, flavour=flavour)
    entry = report.manifest.target
    assert entry.parity["top1_agreement"] > 0.9
    assert entry.parity["mean_kl"] < 0.01
    assert entry.cache.dtype == ("float16" if precision == "float16" else "float32")
    with Engine.open(report.output, threads=1) as engine:
        assert len(engine.complete("the", max_tokens=8, ignore_eos=True).token_ids) == 8


@pytest.mark.parametrize(
    ("family", "provider", "flavour"),
    [("llama", "cuda", "fused"), ("qwen2", "tensorrt", "portable")],
)
def test_a_graph_for_a_gpu_computes_in_float16_and_pads_nothing(
    family: str, provider: str, flavour: str
) -> None:
    report = export_of(family, "int4", flavour=flavour, provider=provider)
    entry = report.manifest.target
    assert (entry.precision, entry.flavour, entry.cache.dtype) == ("int4", flavour, "float16")
    assert entry.parity["mean_kl"] < 0.2
    path = report.output / "target" / "model.onnx"
    graph = onnx.load(path, load_external_data=False).graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert TensorProto.FLOAT not in kinds.values()
    assert not [name for name in kinds if name.startswith("scratch")]  # that is for CPUs
    with Engine.open(report.output, threads=1) as engine:
        assert len(engine.complete("the", max_tokens=4, ignore_eos=True).token_ids) == 4


def test_the_float16_graph_keeps_its_positions_and_logits_in_float32() -> None:
    path = export_of("gpt_neox", "float16").output / "target" / "model.onnx"
    graph = onnx.load(path, load_external_data=False).graph
    assert graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert graph.output[1].type.tensor_type.elem_type == TensorProto.FLOAT16
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    (angles,) = [node for node in graph.node if node.op_type == "Cos"]
    assert "gpt_neox" in FAMILIES
    assert any(kind == TensorProto.FLOAT16 for kind in kinds.values())
    frequencies = [name for name in kinds if "inv_freq" in name]
    assert [kinds[name] for name in frequencies] == [TensorProto.FLOAT]
    assert angles.output[0]


def test_short_blocks_are_steady_and_coarse_storage_gives_way_to_finer() -> None:
    (model,) = export_of("llama", "int4", 32).manifest.models
    assert model.parity["block_error"] == 0
    assert model.is_steady
    assert make_ladder("int4", None) == INT4_LADDER
    assert [storage.block_size for storage in make_ladder("int4", 64)] == [64, 64]
    assert make_ladder("int8", None) == (Storage(32),)
    assert make_ladder("int4", None, is_standard=True) == (Storage(128), Storage(64))
    assert make_ladder("int4", 32, is_standard=True) == (Storage(32),)


def test_the_ladder_is_climbed_until_the_graph_is_faithful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "FINE_KL", 0.0)
    report = export_of("qwen2", "int4", 64)  # asked for here alone, so made here
    assert report.manifest.target.block_size == 64
    assert any("contracting and head layers in int8" in note for note in report.notes)


def test_rounding_spares_what_inputs_carry_most() -> None:
    weight = weights(64, 128)
    importance = np.where(np.arange(128) % 8 == 0, 50.0, 0.1).astype(np.float32)
    errors = [
        np.square(dequantize_matrix(blocks) - weight) @ importance
        for blocks in (
            quantize_matrix(weight, bits=4, block_size=32),
            quantize_matrix(weight, bits=4, block_size=32, importance=importance),
        )
    ]
    assert errors[1].sum() < 0.5 * errors[0].sum()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_importance_is_measured_for_every_weight_of_a_graph(family: str) -> None:
    measured = measure_importance(model_of(family), [[5, 6, 7], [9, 8]])
    traced = traced_again(family)
    prepare(traced.graph, context=128, speed=SpeedPasses())
    for linear in find_linears(traced.graph.graph):
        assert linear.weight.const_value is not None
        columns = linear.weight.const_value.shape.numpy()[1]
        assert measured[source_name(linear.weight.name)].shape == (columns,)
    head = measured[next(name for name in measured if name.startswith(("lm_head", "model.embed")))]
    assert head.mean() == pytest.approx(1, abs=0.01)
