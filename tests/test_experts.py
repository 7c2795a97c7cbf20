"""Mixtures of experts: one op for a layer's experts, in float and in blocks, and what feeds it."""

from typing import Any

import onnx
import pytest
import torch
from tiny_exports import export_of, model_of
from torch import nn

from export.errors import UnsupportedModelError
from export.experts import Gate, recognise_gate
from export.importance import measure_importance
from runtime import Engine

LAYERS, EXPERTS, WIDTH, INNER = 2, 4, 64, 96
PROMPT = [70, 71, 72, 70, 71, 72, 70, 71]


class Experts(nn.Module):
    """What the exporter reads of an experts module; `gate` is its arithmetic."""

    has_gate = True
    has_post_expert_norm = False
    is_transposed = False
    is_concatenated = True

    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.down_proj = nn.Parameter(torch.zeros(2, 8, 6))
        self._gate = gate

    def _apply_gate(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        result: torch.Tensor = self._gate(gate, up)
        return result


def graph_of(family: str, precision: str) -> onnx.ModelProto:
    path = export_of(family, precision).output / "target" / "model.onnx"
    return onnx.load(path, load_external_data=False)


def silu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return nn.functional.silu(gate) * up


def clipped(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


@pytest.mark.parametrize(
    ("gate", "found"),
    [
        (silu, Gate(alpha=1, beta=0, limit=float("inf"))),
        (clipped, Gate(alpha=1.702, beta=1, limit=7)),
    ],
)
def test_what_a_gate_computes_is_found_by_feeding_it(gate: Any, found: Gate) -> None:
    assert recognise_gate(Experts(gate)) == found


def test_a_gate_of_another_kind_is_refused() -> None:
    for gate in (lambda g, u: nn.functional.gelu(g) * u, lambda g, u: silu(g, u.square())):
        with pytest.raises(UnsupportedModelError, match="the gate of Experts is no SiLU"):
            recognise_gate(Experts(gate))
    ungated = Experts(silu)
    ungated.has_gate = False
    with pytest.raises(UnsupportedModelError, match="have no gate"):
        recognise_gate(ungated)


@pytest.mark.parametrize(("precision", "op"), [("float32", "MoE"), ("int8", "QMoE")])
@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_a_layer_s_experts_are_one_op_that_alone_reads_them(
    family: str, precision: str, op: str
) -> None:
    graph = graph_of(family, precision).graph
    found = [node for node in graph.node if node.op_type == op]
    assert len(found) == LAYERS
    weights = {tensor.name for tensor in graph.initializer if ".experts." in tensor.name}
    readers = {node.op_type for node in graph.node if weights & set(node.input)}
    assert readers == {op, "OneHot"}
    assert export_of(family, precision).manifest.target.parity["block_error"] == 0


def test_experts_are_stored_in_as_few_bits_as_the_rest() -> None:
    graph = graph_of("mixtral", "int4").graph
    sizes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    packed = [shape for name, shape in sizes.items() if name.endswith("experts#packed")]
    assert packed == [(EXPERTS, 2 * INNER, WIDTH // 2)] * LAYERS
    routers = [name for name in sizes if "mlp.gate" in name]
    assert all("packed" not in name for name in routers)  # a wrong choice costs too much
    assert len(routers) == LAYERS


def test_drafting_leaves_the_text_of_int4_experts_alone() -> None:
    with Engine.open(export_of("mixtral", "int4").output, threads=2) as engine:
        texts = [
            engine.complete(
                PROMPT, max_tokens=24, temperature=0, ignore_eos=True, numerics="fixed-width", **how
            ).token_ids
            for how in ({"speculate": "off"}, {"k": 1}, {"k": 4})
        ]
    assert texts[0] == texts[1] == texts[2]


def test_what_goes_into_experts_is_weighed_on_both_sides_of_the_gate() -> None:
    model = model_of("mixtral")
    found = measure_importance(model, [PROMPT])
    name = "model.layers.1.mlp.experts"
    assert found[f"{name}.gate_up_proj"].shape == (WIDTH,)
    assert found[f"{name}.down_proj"].shape == (INNER,)
    assert "_apply_gate" not in vars(model.get_submodule(name))  # as it was
