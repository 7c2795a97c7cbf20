"""Trace a transformers model into an ONNX graph with in-place caches.

In: a float model and what its layers need. Out: `Traced`: the graph as onnx_ir sees it, its weights
still the model's own memory, and the cache layout. The graph's signature is the bundle format's
(`input_ids`, places, `logit_rows`, `past.*` → `logits`, `present.*`), the places by flavour.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from runtime.manifest import CacheLayout

from . import experts
from .attention import CacheShape, Flavour, Manner, own
from .attention.rehearse import find_manner
from .errors import UnsupportedModelError, first_line
from .quiet import quiet_exporter
from .source_model import output_head

_EXAMPLE_BATCH, _EXAMPLE_NEW, _EXAMPLE_PAST, _EXAMPLE_CAPACITY = 2, 4, 5, 24


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A traced model: graph, cache layout, the width of its logits, the first token's position."""

    graph: ir.Model
    layout: CacheLayout
    logits: int
    offset: int = 0


class _Wrapper(nn.Module):
    """Gives a model the graph's signature; the caches pass through no cache object."""

    def __init__(self, model: PreTrainedModel, manner: Manner, flavour: Flavour) -> None:
        super().__init__()
        self.model = model
        self.manner = manner
        self.flavour = flavour

    def forward(
        self,
        input_ids: torch.Tensor,
        places: list[torch.Tensor],
        logit_rows: torch.Tensor,
        past: list[torch.Tensor],
    ) -> tuple[torch.Tensor, ...]:
        is_batched = self.flavour.batch != 1
        with _PairsForComplex(), _rows_kept(self.model, logit_rows, is_batched=is_batched):
            logits, present = self.flavour.run_step(
                self.model, self.manner, past, input_ids, places
            )
        # A cast of float32 to itself would stay in the graph.
        wide = logits if logits.dtype == torch.float32 else logits.float()
        return (wide, *present)


def trace(model: PreTrainedModel, flavour: Flavour) -> Traced:
    """Trace `model` in a flavour.

    Raises:
        UnsupportedModelError: the model lacks a seam that tracing needs, or cannot be traced; the
            text says which.
    """
    if not isinstance(output_head(model), nn.Module):
        raise UnsupportedModelError(
            f"model type {model.config.model_type!r} cannot be exported: it has no single output "
            "head, so rows of logits cannot be chosen"
        )
    with _rotary_frozen(model):
        manner = find_manner(model)
        _check_manner(manner, flavour)
        layout = cache_layout(manner.caches)
        program = _export(_Wrapper(model, manner, flavour).eval(), layout)
    graph = program.model
    width = graph.graph.outputs[0].shape[2] if graph.graph.outputs[0].shape else None
    if not isinstance(width, int):
        raise UnsupportedModelError(f"the width of the logits is not fixed (it is {width})")
    _check_ops(graph, manner, flavour)
    return Traced(graph=graph, layout=layout, logits=width, offset=manner.offset)


def cache_layout(caches: Sequence[CacheShape], *, dtype: str = "float32") -> CacheLayout:
    """Return the layout of these caches."""
    shapes = [(cache.kv_heads, cache.head_dim) for cache in caches]
    return CacheLayout(
        layers=len(shapes),
        kv_heads=max(heads for heads, _ in shapes),
        head_dim=max(width for _, width in shapes),
        dtype=dtype,
        shapes=tuple(shapes) if len(set(shapes)) > 1 else (),
    )


def cache_names(side: str, layers: int) -> list[str]:
    """Return the names of the cache tensors on one side (`past` or `present`), in graph order."""
    return [f"{side}.{layer}.{part}" for layer in range(layers) for part in ("key", "value")]


def _export(wrapper: _Wrapper, layout: CacheLayout) -> torch.onnx.ONNXProgram:
    flavour = wrapper.flavour
    batch = flavour.batch or _EXAMPLE_BATCH
    shapes = [layout.shape_of(layer) for layer in range(layout.layers) for _ in ("key", "value")]
    past = [torch.zeros(batch, heads, _EXAMPLE_CAPACITY, width) for heads, width in shapes]
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
        [named(first, 0, "capacity", 0)] * len(past),
    )
    with quiet_exporter(), torch.no_grad(), experts.experts_swapped(wrapper.model):
        try:
            program = torch.onnx.export(
                wrapper,
                arguments,
                dynamo=True,
                optimize=False,
                verbose=False,
                opset_version=max(flavour.opset, own.OPSET)
                if wrapper.manner.is_own
                else flavour.opset,
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


def _check_manner(manner: Manner, flavour: Flavour) -> None:
    if flavour.is_standard and any(layer.sinks for layer in manner.needs):
        raise UnsupportedModelError(
            f"the model's attention has sinks (a learned logit per head in the softmax), which the "
            f"{flavour.name} flavour's standard op has not: choose --flavour fused"
        )
    if flavour.batch != 1 and manner.positions == "length":
        raise UnsupportedModelError(
            "the model finds positions by the length of its cache, which is one for all texts of a "
            f"batch; the {flavour.name} flavour needs one for each: choose --flavour fused"
        )
    if flavour.name == "trees" and manner.is_own:
        raise UnsupportedModelError(
            "the model's attention makes its own masks, so it cannot see a tree: choose --flavour "
            "fused or portable"
        )


def _check_ops(graph: ir.Model, manner: Manner, flavour: Flavour) -> None:
    if flavour.is_standard and any(node.op_type == experts.OP for node in graph.graph):
        raise UnsupportedModelError(
            "the model has a mixture of experts, which is one op of ONNX Runtime's own; the "
            f"{flavour.name} flavour holds standard ops alone: choose --flavour fused"
        )
    op, wanted = (own.OP, 2) if manner.is_own else (flavour.op, 1)
    found, wanted = sum(node.op_type == op for node in graph.graph), wanted * len(manner.caches)
    if found != wanted:
        raise UnsupportedModelError(f"{found} {op} ops were traced where {wanted} were expected")


def _cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    text = first_line(error)
    if "data-dependent" in text:
        return "its forward goes different ways by values that are known only when it runs"
    return text


class _PairsForComplex(TorchFunctionMode):
    """Insert an axis into complex numbers by way of pairs: ONNX has no such op for them."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run `func`, or what stands for it."""
        if func in (torch.Tensor.unsqueeze, torch.unsqueeze) and args[0].is_complex():
            return torch.view_as_complex(torch.view_as_real(args[0]).unsqueeze(args[1]))
        return func(*args, **(kwargs or {}))
