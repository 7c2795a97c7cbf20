"""Load a checkpoint's model as float32 on the CPU, complete or not at all.

In: a checked checkpoint. Out: `SourceModel`: the transformers model, its context and what is worth
telling (a cast, a tie, a cap). A tensor that the files lack is an error, never a random weight.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from .checkpoint import Checkpoint
from .errors import CheckpointError, UnsupportedModelError, first_line
from .plan import SHORTEST_CONTEXT
from .quiet import quiet_loader

_UNBOUNDED_CONTEXT = 4096  # for models whose config names no limit
# Two quantisations of one matrix differ by a few percent; two matrices by about 1.4.
_SAME_MATRIX = 0.2


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A loaded model. `context` is the most tokens it may hold; `notes` are for the person."""

    model: PreTrainedModel
    context: int
    embeddings: int
    parameters: int
    notes: tuple[str, ...] = field(default=())

    @property
    def architecture(self) -> str:
        """The family as transformers names it."""
        return str(self.model.config.model_type)


def load_source(checkpoint: Checkpoint, *, context: int | None) -> SourceModel:
    """Load the model that `checkpoint` holds; `context` caps its context.

    Raises:
        CheckpointError: a tensor is missing or of a wrong shape.
        UnsupportedModelError: the family cannot be loaded, or `context` exceeds its limit.
    """
    notes: list[str] = []
    model, stored = _load(checkpoint)
    if stored not in (torch.float32, None):
        notes.append(f"weights are cast from {str(stored).removeprefix('torch.')} to float32")
    model.requires_grad_(requires_grad=False)
    if checkpoint.form == "gguf":
        notes += _tie_if_same(model)
    limit = context_limit(model.config)
    notes += limit.notes
    embedding: Any = model.get_input_embeddings()
    unique = {p.data_ptr(): p.numel() for p in model.parameters()}
    return SourceModel(
        model=model,
        context=_chosen_context(checkpoint, limit.tokens, context),
        embeddings=int(embedding.weight.shape[0]),
        parameters=sum(unique.values()),
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class ContextLimit:
    """How many tokens a model may hold, and what to tell about it."""

    tokens: int
    notes: tuple[str, ...] = ()


def context_limit(config: Any) -> ContextLimit:
    """Return the context that `config` allows with rotary frequencies that never change."""
    text = config.get_text_config()
    names = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length")
    found = [getattr(text, name, None) for name in names]
    tokens = next((n for n in found if isinstance(n, int) and n > 0), None)
    if tokens is None:
        note = f"the config names no context limit: {_UNBOUNDED_CONTEXT} tokens are assumed"
        return ContextLimit(_UNBOUNDED_CONTEXT, (note,))
    switch = _switch_point(getattr(text, "rope_parameters", None), tokens)
    if switch is None or switch >= tokens:
        return ContextLimit(tokens)
    note = (
        f"the context is capped at {switch} of {tokens} tokens: beyond, the rotary frequencies "
        "change with the length of the text, and earlier tokens would have to be read again"
    )
    return ContextLimit(switch, (note,))


def _load(checkpoint: Checkpoint) -> tuple[PreTrainedModel, torch.dtype | None]:
    folder, arguments = checkpoint.for_transformers()
    with quiet_loader():
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation="eager",
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported, and refused below in our own words
                **arguments,
            )
        except Exception as error:  # the library raises many unrelated types
            raise UnsupportedModelError(
                f"{checkpoint.path} cannot be loaded as a causal language model: "
                f"{first_line(error)}"
            ) from None
    model: PreTrainedModel = loaded[0]
    _check_complete(checkpoint, loaded[1])
    stored = _stored_type(checkpoint)
    # A GGUF's model forbids its own `float`, although its weights are plain by now.
    torch.nn.Module.float(model)
    model.train(mode=False)
    return model, stored


def output_head(model: PreTrainedModel) -> Any:
    """Return the module that projects hidden states to the vocabulary, or None."""
    return model.get_output_embeddings()  # type: ignore[no-untyped-call]


def _check_complete(checkpoint: Checkpoint, info: dict[str, Any]) -> None:
    missing = sorted(info.get("missing_keys") or [])
    if missing:
        raise CheckpointError(
            f"{checkpoint.path} lacks {len(missing)} of the model's tensors, first {missing[0]}: "
            "the checkpoint is incomplete or of another family; nothing was made up for them"
        )
    for name, found, expected in sorted(info.get("mismatched_keys") or []):
        raise CheckpointError(
            f"{checkpoint.path}: tensor {name} has the shape {list(found)}, but by its config the "
            f"model needs {list(expected)}: weights and config do not belong together"
        )


def _stored_type(checkpoint: Checkpoint) -> torch.dtype | None:
    if checkpoint.form == "gguf":
        return None
    from safetensors import safe_open

    file = next(iter(sorted(checkpoint.path.glob("*.safetensors"))))
    with safe_open(file, "pt") as content:
        name = next(iter(content.keys()), None)
        return None if name is None else content.get_tensor(name).dtype


def _tie_if_same(model: PreTrainedModel) -> list[str]:
    """Tie embedding and head of a GGUF that holds one matrix in two quantisations."""
    embedding: Any = model.get_input_embeddings()
    head: Any = output_head(model)
    if (
        head is None
        or head.weight is embedding.weight
        or head.weight.shape != embedding.weight.shape
    ):
        return []
    distance = float((embedding.weight - head.weight).norm() / head.weight.norm())
    if distance > _SAME_MATRIX:
        return []
    embedding.weight = head.weight
    return [
        "the GGUF holds one matrix twice, as embedding and as head, in two quantisations "
        f"({100 * distance:.1f} % apart): the head's serves as both"
    ]


def _switch_point(rope: Any, tokens: int) -> int | None:
    """Return the length at which rotary frequencies change, or None when they never do."""
    if not isinstance(rope, dict):
        return None
    if all(isinstance(value, dict) for value in rope.values()) and rope:  # one per layer type
        points = [_switch_point(value, tokens) for value in rope.values()]
        return min((p for p in points if p is not None), default=None)
    if rope.get("rope_type") != "longrope":  # dynamic scaling starts at the limit itself
        return None
    return int(rope.get("original_max_position_embeddings") or tokens)


def _chosen_context(checkpoint: Checkpoint, limit: int, wished: int | None) -> int:
    if limit < SHORTEST_CONTEXT:
        raise UnsupportedModelError(
            f"{checkpoint.reference} was made for {limit} tokens, fewer than the "
            f"{SHORTEST_CONTEXT} that an export is checked with"
        )
    if wished is not None and wished > limit:
        raise UnsupportedModelError(
            f"--context {wished} exceeds what {checkpoint.reference} was made for: {limit} tokens"
        )
    return limit if wished is None else wished
