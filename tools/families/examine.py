"""One model type through the product's own exporter and runtime: is every logit right?

In: a model type. Out: `Verdict`: `ok` with the largest error, `refused` with the exporter's
sentence, or `failed` with the place. The text is longer than the gate's own, crosses the window in
place, and is left half-way and gone on with differently, twice.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.onnx
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel

from export.errors import ParityError, UnsupportedModelError, first_line
from export.pipeline import export_bundle
from export.plan import make_plan
from export.progress import Progress
from export.quiet import quiet_loader
from runtime.bundle import open_bundle
from runtime.model import OnnxModel

from ..errors import ToolError
from .record import Verdict
from .shrink import VOCABULARY, WINDOW
from .specimen import write_specimen

LENGTH = 8 * WINDOW
TOLERANCE = 1e-4  # of the range of the logits
# How many tokens each pass feeds; in all LENGTH, the window is left behind in passes of any width.
_PASSES = (1, 5, 1, 2, 16, 1, 33, 8, 1, 3, 20, 1, 36)
_ROLLBACKS = (5 * WINDOW + 1, WINDOW - 3)  # go back to so many tokens, then feed others
_AFTER = WINDOW + 4


def examine(family: str, *, flavour: str) -> Verdict:
    """Export a tiny model of `family` and compare it with PyTorch."""
    began = time.monotonic()
    kind, reason, error = "failed", "", None
    with tempfile.TemporaryDirectory(prefix="forerun-family-") as name:
        checkpoint, bundle = Path(name) / "checkpoint", Path(name) / "bundle"
        try:
            write_specimen(family, checkpoint)
            plan = make_plan(
                target=str(checkpoint), output=bundle, precision="float32", flavour=flavour
            )
            export_bundle(plan, progress=Progress(quiet=True))
            error = _compare(checkpoint, bundle)
            kind = "ok"
        except (UnsupportedModelError, ToolError) as refusal:
            kind, reason = "refused", _short(refusal, checkpoint)
        except ParityError as wrong:
            reason = f"parity: {_short(wrong, checkpoint)}"
        except Exception as fault:  # whatever it is, it is the finding
            reason = f"{type(fault).__name__}: {_short(fault, checkpoint)}"
    seconds = time.monotonic() - began
    return Verdict(
        family=family,
        flavour=flavour,
        verdict=kind,
        reason=reason,
        error=error,
        seconds=round(seconds, 1),
    )


def _short(error: BaseException, checkpoint: Path) -> str:
    return first_line(error).replace(str(checkpoint), "the checkpoint")


def _compare(checkpoint: Path, bundle: Path) -> float:
    """Return the largest error over all passes; raise ParityError beyond the tolerance."""
    entry = open_bundle(bundle).manifest.target
    model = OnnxModel.open(bundle / entry.graph, entry)
    with quiet_loader():
        reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager"
        )
    rng = np.random.default_rng(7)
    padding = getattr(reference.config.get_text_config(), "pad_token_id", None)

    def draw(count: int) -> list[int]:
        return [int(n) if n != padding else 3 for n in rng.integers(4, VOCABULARY, count)]

    tokens = draw(LENGTH)
    wanted = _torch_logits(reference, tokens)
    tolerance = max(TOLERANCE, _measure_noise(reference, tokens, wanted))
    errors, end = [], 0
    for width in _PASSES:
        end += width
        found = model.score(tokens[:end], width)
        errors.append(_error(found, wanted[end - width : end], tolerance, f"token {end}"))
    for past in _ROLLBACKS:
        model.rewind(to=past)
        tokens = [*tokens[:past], *draw(_AFTER)]
        found = model.score(tokens, _AFTER)
        wanted = _torch_logits(reference, tokens)[past:]
        errors.append(_error(found, wanted, tolerance, f"a rollback to {past} tokens"))
    return max(errors)


def _torch_logits(model: PreTrainedModel, tokens: list[int]) -> NDArray[np.float32]:
    with torch.no_grad():
        out: Any = model(input_ids=torch.tensor([tokens]), use_cache=False)
    logits: NDArray[np.float32] = out.logits[0].numpy().copy()
    return logits


def _measure_noise(model: PreTrainedModel, tokens: list[int], wanted: NDArray[np.float32]) -> float:
    """Return what rounding every weight a bit otherwise does to the logits.

    Of some random models the last bit of a weight decides a fourth digit, in PyTorch too.
    """
    generator = torch.Generator().manual_seed(5)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for parameter in model.parameters():
        if parameter.is_floating_point():
            signs = torch.randn(parameter.shape, generator=generator).sign()
            parameter.data.mul_(1 + signs * torch.finfo(torch.float32).eps)
    moved = _torch_logits(model, tokens)
    for parameter, kept in zip(model.parameters(), before, strict=True):
        parameter.data.copy_(kept)
    return 4 * float(np.abs(moved - wanted).max() / (wanted.max() - wanted.min()))


def _error(
    found: NDArray[np.float32], wanted: NDArray[np.float32], tolerance: float, what: str
) -> float:
    error = float(np.abs(found - wanted).max() / (wanted.max() - wanted.min()))
    if not error <= tolerance:
        raise ParityError(f"silently wrong by {error:.2g} of the logits' range for {what}")
    return error
