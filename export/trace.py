"""Trace a transformers model into an ONNX graph with in-place caches.

In: a float model and what its layers need. Out: `Traced`: the graph as onnx_ir sees it, its weights
still the model's own memory, and the cache layout. The graph's signature is the bundle format's
(`input_ids`, places, `logit_rows`, `past.*` → `logits`, `present.*`), the places by flavour.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from transformers import PreTrainedModel

from runtime.manifest import CacheLayout

from . import experts
from .attention import Flavour, LayerNeeds
from .attention.observe import observe_layers
from .errors import UnsupportedModelError, first_line
from .quiet import quiet_exporter
from .source_model import output_head

_EXAMPLE_BATCH, _EXAMPLE_NEW, _EXAMPLE_PAST, _EXAMPLE_CAPACITY = 2, 4, 5, 24


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A traced model: graph, cache layout and the width of its logits."""

    graph: ir.Model
    layout: CacheLayout
    logits: int


class _Wrapper(nn.Module):
    """Gives a model the graph's signature; the caches pass through no cache object."""

    def __init__(
        self, model: PreTrainedModel, needs: Sequence[LayerNeeds], flavour: Flavour
    ) -> None:
        super().__init__()
        self.model = model
        self.needs = needs
        self.flavour = flavour

    def forward(
        self,
        input_ids: torch.Tensor,
        places: list[torch.Tensor],
        logit_rows: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        with _rows_kept(self.model, logit_rows, is_batched=self.flavour.batch != 1):
            logits, present = self.flavour.run_step(self.model, self.needs, past, input_ids, places)
        # A cast of float32 to itself would stay in the graph.
        wide = logits if logits.dtype == torch.float32 else logits.float()
        return (wide, *present)


def trace(model: PreTrainedModel, flavour: Flavour) -> Traced:
    """Trace `model` in a flavour.

    Raises:
        UnsupportedModelError: the model lacks a seam that tracing needs, or cannot be traced; the
            text says which.
    """
    _check_seams(model)
    with _rotary_frozen(model):
        needs = observe_layers(model)
        _check_needs(needs, flavour)
        layout = cache_layout(needs)
        program = _export(_Wrapper(model, needs, flavour).eval(), layout)
    graph = program.model
    width = graph.graph.outputs[0].shape[2] if graph.graph.outputs[0].shape else None
    if not isinstance(width, int):
        raise UnsupportedModelError(f"the width of the logits is not fixed (it is {width})")
    _check_ops(graph, layout, flavour)
    return Traced(graph=graph, layout=layout, logits=width)


def cache_layout(needs: Sequence[LayerNeeds], *, dtype: str = "float32") -> CacheLayout:
    """Return the cache layout that all layers share.

    Raises:
        UnsupportedModelError: layers differ in their heads or widths.
    """
    shapes = {(layer.kv_heads, layer.head_dim) for layer in needs}
    if len(shapes) != 1:
        raise UnsupportedModelError(
            "the layers' caches differ in shape (key-value heads x width: "
            f"{', '.join(f'{heads} x {dim}' for heads, dim in sorted(shapes))}); "
            "the bundle format holds one shape for all layers"
        )
    kv_heads, head_dim = shapes.pop()
    return CacheLayout(layers=len(needs), kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)


def cache_names(side: str, layers: int) -> list[str]:
    """Return the names of the cache tensors on one side (`past` or `present`), in graph order."""
    return [f"{side}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


def _export(wrapper: _Wrapper, layout: CacheLayout) -> torch.onnx.ONNXProgram:
    flavour = wrapper.flavour
    batch = flavour.batch or _EXAMPLE_BATCH
    past = [
        torch.zeros(batch, layout.kv_heads, _EXAMPLE_CAPACITY, layout.head_dim)
        for _ in range(2 * layout.layers)
    ]
    arguments = (
        torch.zeros(batch, _EXAMPLE_NEW, dtype=torch.int64),
        flavour.make_places(batch, _EXAMPLE_PAST, _EXAMPLE_NEW, _EXAMPLE_CAPACITY),
        torch.tensor([1, 2, 3]),
        past,
    )
    symbols = {name: torch.export.Dim(name) for name in ("batch", "sequence", "rows", "capacity")}

    def named(*sizes: int | str) -> dict[int, Any]:
        return {axis: symbols[size] for axis, size in enumerate(sizes) if isinstance(size, str)}

    first = flavour.batch or "batch"
    sizes = (
        named(first, "sequence"),
        [named(*place.sizes) for place in flavour.places],
        named("rows"),
        [named(first, layout.kv_heads, "capacity", layout.head_dim)] * len(past),
    )
    with quiet_exporter(), torch.no_grad(), experts.experts_swapped(wrapper.model):
        try:
            program = torch.onnx.export(
                wrapper,
                arguments,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=flavour.opset,
                dynamic_shapes=sizes,
                input_names=[
                    "input_ids",
                    *(place.name for place in flavour.places),
                    "logit_rows",
                    *cache_names("past", layout.layers),
                ],
                output_names=["logits", *cache_names("present", layout.layers)],
            )
        except (torch.onnx.errors.OnnxExporterError, torch._dynamo.exc.TorchDynamoException) as e:
            raise UnsupportedModelError(
                f"model type {wrapper.model.config.model_type!r} cannot be traced: {_cause(e)}"
            ) from None
    assert program is not None  # dynamo=True always returns a program
    return program


@contextmanager
def _rows_kept(model: PreTrainedModel, rows: torch.Tensor, *, is_batched: bool) -> Iterator[None]:
    """Project only the hidden rows `rows` to the vocabulary: cut where they enter the head.

    Rows of a batch are counted through: row r of sequence b is `b * S + r`.
    """
    head = output_head(model)

    def keep(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        hidden = inputs[0].flatten(0, 1)[None] if is_batched else inputs[0]
        return (hidden.index_select(1, rows), *inputs[1:])

    hook = head.register_forward_pre_hook(keep)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _rotary_frozen(model: PreTrainedModel) -> Iterator[None]:
    """Keep rotary frequencies at those of short texts: `context_limit` caps the context there."""
    switched: dict[Any, Any] = {
        module: kind
        for module in model.modules()
        if _switches(kind := getattr(module, "rope_type", None))
    }
    for module, kind in switched.items():
        frozen = dict.fromkeys(kind, "default") if isinstance(kind, dict) else "default"
        module.rope_type = frozen
    try:
        yield
    finally:
        for module, kind in switched.items():
            module.rope_type = kind


def _switches(kind: object) -> bool:
    kinds = kind.values() if isinstance(kind, dict) else [kind]
    return any(k == "longrope" or "dynamic" in str(k) for k in kinds)


def _check_seams(model: PreTrainedModel) -> None:
    family = f"model type {model.config.model_type!r}"
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(
            f"{family} cannot be exported: its forward takes no position_ids, so tokens after a "
            "non-empty cache cannot be placed (ALiBi and recurrent models)"
        )
    if not isinstance(output_head(model), nn.Module):
        raise UnsupportedModelError(
            f"{family} cannot be exported: it has no single output head, so rows of logits cannot "
            "be chosen"
        )


def _check_needs(needs: Sequence[LayerNeeds], flavour: Flavour) -> None:
    if flavour.is_standard and any(layer.sinks for layer in needs):
        raise UnsupportedModelError(
            f"the model's attention has sinks (a learned logit per head in the softmax), which the "
            f"{flavour.name} flavour's standard op has not: choose --flavour fused"
        )


def _check_ops(graph: ir.Model, layout: CacheLayout, flavour: Flavour) -> None:
    if flavour.is_standard and any(node.op_type == experts.OP for node in graph.graph):
        raise UnsupportedModelError(
            "the model has a mixture of experts, which is one op of ONNX Runtime's own; the "
            f"{flavour.name} flavour holds standard ops alone: choose --flavour fused"
        )
    found = sum(node.op_type == flavour.op for node in graph.graph)
    if found != layout.layers:
        raise UnsupportedModelError(
            f"{found} attention ops were traced where {layout.layers} layers were expected"
        )


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)
