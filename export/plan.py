"""What to build: the command's options, checked and frozen.

In: options as the user wrote them. Out: `Plan` or `AddPlan`, or `PlanError` that names the option,
what it may be and what it was. Standard library only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.manifest import PRECISIONS

from .errors import PlanError

DEFAULT_PRECISION = "int4"
BLOCK_SIZES = (16, 32, 64, 128, 256)
SHORTEST_CONTEXT = 64  # the parity gate needs so many tokens
# The runtime knows these by other means.
TAKEN_NAMES = ("target", "suffix", "lookup")
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
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


@dataclass(frozen=True, kw_only=True)
class AddPlan:
    """Drafts for the bundle at `output`; one without a name (`""`) gets the next that is free."""

    output: Path
    models: tuple[ModelPlan, ...]


def make_plan(
    *,
    target: str,
    output: Path,
    drafts: Sequence[str] = (),
    precision: str = DEFAULT_PRECISION,
    draft_precision: str | None = None,
    block_size: int | None = None,
    context: int | None = None,
    overwrite: bool = False,
) -> Plan:
    """Check the options and return the plan.

    Raises PlanError that names the option.
    """
    _check_common(precision, block_size, context)
    _check_precision("--draft-precision", draft_precision or precision)
    if draft_precision is not None and not drafts:
        raise PlanError("--draft-precision is given, but no --draft")
    _check_references("--target", [target])
    _check_references("--draft", drafts)
    models = [
        ModelPlan(
            name=draft_name(place) if place else "target",
            role="draft" if place else "target",
            reference=reference,
            precision=(draft_precision or precision) if place else precision,
            block_size=block_size,
            context=context,
        )
        for place, reference in enumerate((target, *drafts))
    ]
    return Plan(output=output, models=tuple(models), overwrite=overwrite)


def make_add_plan(
    *,
    output: Path,
    drafts: Sequence[str],
    name: str | None = None,
    precision: str = DEFAULT_PRECISION,
    block_size: int | None = None,
    context: int | None = None,
) -> AddPlan:
    """Check the options for drafts that join the bundle at `output` and return the plan.

    Raises PlanError that names the option.
    """
    _check_common(precision, block_size, context)
    _check_references("--add-draft", drafts)
    if name is not None and len(drafts) > 1:
        raise PlanError(f"--name names one draft, but {len(drafts)} are added: add them one by one")
    if name is not None:
        check_stage_name(name)
    models = tuple(
        ModelPlan(
            name=name or "",
            role="draft",
            reference=reference,
            precision=precision,
            block_size=block_size,
            context=context,
        )
        for reference in drafts
    )
    return AddPlan(output=output, models=models)


def check_stage_name(name: str) -> None:
    """Check that a new stage may be called `name`; raise PlanError if not."""
    if not _STAGE_NAME.fullmatch(name):
        raise PlanError(
            "--name must be up to 32 lower-case letters, digits, - and _, beginning with a letter, "
            f"but is {name!r}"
        )
    if name in TAKEN_NAMES:
        raise PlanError(f"--name must not be {name!r}, which means something else to the runtime")


def draft_name(place: int) -> str:
    """Return the usual name of the draft at `place`, 1 being the nearest to the target."""
    return "draft" if place == 1 else f"draft{place}"


def _check_common(precision: str, block_size: int | None, context: int | None) -> None:
    _check_precision("--precision", precision)
    if block_size is not None and block_size not in BLOCK_SIZES:
        sizes = ", ".join(map(str, BLOCK_SIZES))
        raise PlanError(f"--block-size must be one of {sizes}, but is {block_size}")
    if context is not None and context < SHORTEST_CONTEXT:
        raise PlanError(f"--context must be at least {SHORTEST_CONTEXT}, but is {context}")


def _check_references(option: str, references: Sequence[str]) -> None:
    for reference in references:
        if not reference.strip():
            raise PlanError(f"{option} is empty: name a recipe, a folder, a GGUF file or a hub id")


def _check_precision(option: str, precision: str) -> None:
    if precision in PRECISIONS:
        return
    reason = f": {_NO_KERNELS[precision]}" if precision in _NO_KERNELS else ""
    raise PlanError(
        f"{option} must be one of {', '.join(PRECISIONS)}, but is {precision!r}{reason}"
    )
