"""A checkpoint as a Hugging Face folder with safetensors, for tools that read nothing else.

In: `python -m tools.bench.unpack REFERENCE FOLDER` (a GGUF file, a recipe, a folder). Out: FOLDER
with the weights dequantised to float16, written once. Runs in a process of its own, so that
torch's memory is gone afterwards.
"""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from export.checkpoint import resolve
from export.errors import CheckpointError
from export.progress import Progress
from runtime.errors import ForerunError


def main(argv: Sequence[str] | None = None) -> int:
    """Unpack and return the exit code."""
    reference, folder = sys.argv[1:] if argv is None else argv
    try:
        unpack(reference, Path(folder))
    except ForerunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def unpack(reference: str, folder: Path) -> None:
    """Write the checkpoint `reference` as a folder of safetensors; it appears whole or not at all.

    Raises:
        CheckpointError: there is no such checkpoint, or transformers cannot read it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, arguments = resolve(reference, progress=Progress()).for_transformers()
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(where, **arguments)
        model: Any = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float16, **arguments)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{reference} cannot be unpacked: {error}") from error
    tie_head(model)
    forget_quantization(model)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    spell_rotary_base(partial / "config.json")
    partial.rename(folder)


def tie_head(model: Any) -> None:
    """Tie the output head to the embedding where both hold the same values.

    A GGUF file that stores one of the two is loaded with two copies.
    """
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    if head.shape == embedding.shape and bool((head == embedding).all()):
        model.config.tie_word_embeddings = True
        model.tie_weights()


def forget_quantization(model: Any) -> None:
    """Clear the marks of the GGUF loader, for which `save_pretrained` would refuse the model."""
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def spell_rotary_base(config: Path) -> None:
    """Write the rotary base where transformers before 5 looks for it too."""
    fields = json.loads(config.read_text(encoding="utf-8"))
    base = (fields.get("rope_parameters") or {}).get("rope_theta")
    if base is not None:
        fields.setdefault("rope_theta", base)
        config.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
