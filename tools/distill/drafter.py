"""The model that is trained: chosen layers of a checkpoint, its embedding and a trimmed head.

In: a checkpoint, and which of its layers. Out: `Drafter`: the transformers model of the same family
with these layers alone, embedding and head frozen unless asked for, and the tokens that its head
projects onto; or its folder, a checkpoint like any other.
"""

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from export.bundle import writing
from export.checkpoint import Checkpoint
from export.errors import UnsupportedModelError
from export.language import Language
from export.quiet import quiet_loader, quiet_transformers
from export.source_model import output_head
from tools.errors import ToolError

VOCABULARY_FILE = "draft_vocab.txt"


class Drafter:
    """A small decoder under training.

    Args:
        model: the transformers model, with the whole embedding and head; its head is replaced.
        kept: the tokens that it may propose, ascending; `[kept]` int64.
        source_layers: where its layers come from.
        share: weights that a token passes, as a share of the target's.

    Raises:
        UnsupportedModelError: its head is not one plain linear layer.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        kept: NDArray[np.int64],
        source_layers: tuple[int, ...],
        share: float,
    ) -> None:
        self.model = model
        self.kept = kept
        self.source_layers = source_layers
        self.share = share
        self._head = _JudgedHead(output_head(model), kept)
        model.set_output_embeddings(self._head)  # type: ignore[no-untyped-call]

    def move(self, device: torch.device) -> None:
        """Put its weights on a device."""
        model: Any = self.model
        model.to(device)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.model.device

    @property
    def rows(self) -> int:
        """How many tokens embedding and whole head know, the fewer of the two."""
        embedding: Any = self.model.get_input_embeddings()
        return min(len(embedding.weight), len(self._head.whole.weight))

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def scores(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return logits of the kept tokens, `[n, kept]` float32.

        Args:
            tokens: `[rows, length]` int64.
            places: `[n]` int64, which of the `rows · length` places are judged.
        """
        self._head.places = places
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits[0].float()

    def whole(self) -> PreTrainedModel:
        """Return a copy of the model with its own head, on the CPU."""
        model = copy.deepcopy(self.model).cpu()
        judged: Any = output_head(model)
        model.set_output_embeddings(judged.whole)  # type: ignore[no-untyped-call]
        return model


class _JudgedHead(nn.Module):
    """A head that projects chosen places onto the kept tokens: the rest would be thrown away.

    It stands inside the model, whose own code scales or caps the logits as it does at any time.
    """

    def __init__(self, whole: Any, kept: NDArray[np.int64]) -> None:
        super().__init__()
        if type(whole) is not nn.Linear:
            raise UnsupportedModelError("the checkpoint's head is no plain linear layer")
        self.whole = whole
        self.places = torch.zeros(0, dtype=torch.int64)
        self.columns: torch.Tensor
        self.rows: torch.Tensor | None
        self.register_buffer("columns", torch.from_numpy(kept))
        rows = None if whole.weight.requires_grad else whole.weight.detach()[kept].contiguous()
        self.register_buffer("rows", rows)  # frozen ones are gathered once

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return `[1, n, kept]` for `hidden` `[rows, length, width]`."""
        weight = self.whole.weight[self.columns] if self.rows is None else self.rows
        bias = None if self.whole.bias is None else self.whole.bias[self.columns]
        return nn.functional.linear(hidden.flatten(0, 1)[self.places], weight, bias)[None]


def count_layers(checkpoint: Checkpoint) -> int:
    """Return how many layers a checked checkpoint has, without its weights."""
    folder, arguments = checkpoint.for_transformers()
    with quiet_loader():
        config = AutoConfig.from_pretrained(folder, local_files_only=True, **arguments)
    return int(config.get_text_config().num_hidden_layers)


def read_layers(text: str, layers: int) -> tuple[int, ...]:
    """Return the layers that `0,29` or `0-3` names, of a model with so many.

    Raises:
        ToolError: it is no such list, or names a layer that is not there.
    """
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ToolError(
                f"--init-from ends in {text!r}: name layers such as CHECKPOINT:0,{layers - 1}"
            )
        chosen += range(int(first), int(last or first) + 1)
    for layer in chosen:
        if layer >= layers:
            raise ToolError(
                f"--init-from names layer {layer}, but the checkpoint has {layers}, 0 to "
                f"{layers - 1}"
            )
    if not chosen:
        raise ToolError(f"--init-from ends in {text!r}, which names no layer")
    return tuple(chosen)


def spread_layers(count: int, layers: int) -> tuple[int, ...]:
    """Return `count` of the layers, evenly from the first to the last.

    Raises:
        ToolError: there are not so many.
    """
    if not 1 <= count <= layers:
        raise ToolError(f"--layers must be 1 to {layers}, the checkpoint's layers, but is {count}")
    return tuple(np.linspace(0, layers - 1, count).round().astype(int).tolist())


def make_drafter(
    source: PreTrainedModel,
    *,
    layers: tuple[int, ...],
    kept: NDArray[np.int64],
    target_weights: int,
    trains_embeddings: bool,
) -> Drafter:
    """Build the drafter from a model's layers, in float32 on the CPU.

    Args:
        source: the target, or a smaller model with its tokenizer.
        layers: which of its layers, in the order in which they are to stand.
        kept: the tokens that it may propose.
        target_weights: weights that a token of the target passes.
        trains_embeddings: embedding and head are trained, too.

    Raises:
        UnsupportedModelError: the family's layers cannot be told apart, or its head is no plain
            linear layer.
    """
    model = _keep_layers(source, _find_layers(source), layers)
    embeddings = {id(p) for p in _embedding_parameters(model)}
    for parameter in model.parameters():
        parameter.requires_grad_(trains_embeddings or id(parameter) not in embeddings)
    share = count_passed(model, columns=len(kept)) / target_weights
    model.train(mode=False)  # nothing is dropped at random
    return Drafter(model, kept, layers, share)


def count_passed(model: PreTrainedModel, *, columns: int | None = None) -> int:
    """Return how many weights one token passes: all but the embedding's, of the head `columns`."""
    head = output_head(model)
    embeddings = {id(p): p.numel() for p in _embedding_parameters(model)}
    rest = sum(p.numel() for p in model.parameters()) - sum(embeddings.values())
    return rest + int(head.weight.shape[1]) * (columns or int(head.weight.shape[0]))


def save_drafter(drafter: Drafter, language: Language, folder: Path) -> None:
    """Write the checkpoint and the list of the tokens it may propose into a folder that is there.

    Weights are stored in float16.

    Raises:
        PublishError: the folder cannot be written to.
    """
    model: Any = drafter.whole()
    model.to(torch.float16)
    with writing(folder), quiet_transformers():
        try:
            model.save_pretrained(folder)
        except Exception as error:
            if "os error" in str(error):  # safetensors names the system's error in words alone
                raise OSError(28, str(error)) from None
            raise
        (folder / "tokenizer.json").write_bytes(language.tokenizer_json)
        words: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": language.bos_token,
            "eos_token": language.eos_token,
            "add_bos_token": language.adds_bos,
            "chat_template": language.chat_template,
        }
        text = json.dumps({k: v for k, v in words.items() if v is not None}, indent=2)
        (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
        lines = [f"# tokenizer {language.fingerprint}", *map(str, drafter.kept.tolist())]
        (folder / VOCABULARY_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _find_layers(model: PreTrainedModel) -> str:
    """Return the path of the list of layers."""
    wanted = int(model.config.num_hidden_layers)
    found = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == wanted
    ]
    if len(found) != 1:
        raise UnsupportedModelError(
            f"the layers of model type {model.config.model_type!r} cannot be told apart: take "
            "--init-from a checkpoint of another family with the same tokenizer"
        )
    return str(found[0])


def _keep_layers(source: PreTrainedModel, path: str, chosen: Sequence[int]) -> PreTrainedModel:
    config = copy.deepcopy(source.config)
    layers = int(config.num_hidden_layers)
    for name, value in config.to_dict().items():  # such as the kind of each layer's window
        if isinstance(value, list) and len(value) == layers and "layer" in name:
            setattr(config, name, [value[layer] for layer in chosen])
    config.num_hidden_layers = len(chosen)
    if hasattr(config, "quantization_config"):  # of a file in blocks, whose weights are plain now
        del config.quantization_config
    with quiet_transformers():
        make: Any = AutoModelForCausalLM.from_config
        model: PreTrainedModel = make(config, dtype=torch.float32)
    model.load_state_dict(_renumber(source.state_dict(), path, chosen), strict=True)
    model.tie_weights()
    return model


def _renumber(
    weights: Mapping[str, torch.Tensor], path: str, chosen: Sequence[int]
) -> dict[str, torch.Tensor]:
    prefix, renamed = f"{path}.", {}
    for name, tensor in weights.items():
        if not name.startswith(prefix):
            renamed[name] = tensor
            continue
        number, _, rest = name.removeprefix(prefix).partition(".")
        for place, layer in enumerate(chosen):
            if layer == int(number):
                renamed[f"{prefix}{place}.{rest}"] = tensor
    return renamed


def _embedding_parameters(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return embedding and head, once where they are one."""
    modules: list[Any] = [model.get_input_embeddings(), output_head(model)]
    own = {id(p): p for module in modules for p in module.parameters()}
    return list(own.values())
