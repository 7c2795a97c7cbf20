"""What to build: the command's options, checked and frozen.

In: options as the user wrote them. Out: `Plan`, or `PlanError` that names the option, what it may
be and what it was. Standard library only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.manifest import PRECISIONS

from .errors import PlanError

BLOCK_SIZES = (16, 32, 64, 128, 256)
SHORTEST_CONTEXT = 64  # the parity gate needs so many tokens
_NO_KERNELS = {
    "bfloat16": "ONNX Runtime has no bfloat16 kernels on the CPU",
    "bf16": "ONNX Runtime has no bfloat16 kernels on the CPU",
}


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model of the bundle: `name` is its sub-folder, `reference` the checkpoint's name.

    Without a `block_size` the coarsest that is faithful enough is found by measuring.
    """

    name: str
    role: str
    reference: str
    precision: str
    block_size: int | None
    context: int | None

    @property
    def is_quantised(self) -> bool:
        """Whether weights are stored in integer blocks."""
        return self.precision in ("int4", "int8")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole export. `models` starts with the target; drafts follow, nearest to it first."""

    output: Path
    models: tuple[ModelPlan, ...]
    overwrite: bool = False


def make_plan(
    *,
    target: str,
    output: Path,
    drafts: Sequence[str] = (),
    precision: str = "int4",
    draft_precision: str | None = None,
    block_size: int | None = None,
    context: int | None = None,
    overwrite: bool = False,
) -> Plan:
    """Check the options and return the plan.

    Raises PlanError that names the option.
    """
    _check_precision("--precision", precision)
    _check_precision("--draft-precision", draft_precision or precision)
    if draft_precision is not None and not drafts:
        raise PlanError("--draft-precision is given, but no --draft")
    if block_size is not None and block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise PlanError(f"--block-size must be one of {sizes}, but is {block_size}")
    if context is not None and context < SHORTEST_CONTEXT:
        raise PlanError(f"--context must be at least {SHORTEST_CONTEXT}, but is {context}")
    for option, reference in (("--target", target), *(("--draft", draft) for draft in drafts)):
        if not reference.strip():
            raise PlanError(f"{option} is empty: name a recipe, a folder, a GGUF file or a hub id")
    models = [
        ModelPlan(
            name=_name(place),
            role="draft" if place else "target",
            reference=reference,
            precision=(draft_precision or precision) if place else precision,
            block_size=block_size,
            context=context,
        )
        for place, reference in enumerate((target, *drafts))
    ]
    return Plan(output=output, models=tuple(models), overwrite=overwrite)


def _name(place: int) -> str:
    return ("target", "draft")[place] if place < 2 else f"draft{place}"


def _check_precision(option: str, precision: str) -> None:
    if precision in PRECISIONS:
        return
    reason = f": {_NO_KERNELS[precision]}" if precision in _NO_KERNELS else ""
    raise PlanError(
        f"{option} must be one of {', '.join(PRECISIONS)}, but is {precision!r}{reason}"
    )
