"""What to build: the command's options, checked and frozen.

In: options as the user wrote them. Out: `Plan` or `AddPlan`, or `PlanError` that names the option,
what it may be and what it was. Standard library only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.manifest import FLAVOURS, PRECISIONS

from .errors import PlanError

DEFAULT_PRECISION = "int4"
PROVIDERS = {"cpu": "fused", "cuda": "fused", "tensorrt": "portable"}  # and their usual flavours
BLOCK_SIZES = (16, 32, 64, 128, 256)
LARGEST_STANDARD_BLOCK = 128  # of int4 weights, as TensorRT takes them
SHORTEST_CONTEXT = 64  # the parity gate needs so many tokens
# The runtime knows these by other means.
TAKEN_NAMES = ("target", "suffix", "lookup", "ngram")
_STAGE_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_NO_KERNELS = {
    "bfloat16": "ONNX Runtime has no bfloat16 kernels on the CPU",
    "bf16": "ONNX Runtime has no bfloat16 kernels on the CPU",
}


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """One model of the bundle: `name` is its sub-folder, `reference` the checkpoint's name.

    Without a `block_size` the coarsest that is faithful enough is found by measuring. `flavour` is
    one of `runtime.manifest.FLAVOURS`, `provider` what the graph is meant to run on. `wishes` are
    the options that were given of those which say how a graph is made.
    """

    name: str
    role: str
    reference: str
    precision: str
    block_size: int | None
    context: int | None
    flavour: str = "fused"
    provider: str = "cpu"
    wishes: tuple[str, ...] = ()

    @property
    def is_half(self) -> bool:
        """Whether activations and caches are float16: GPUs want it wherever they may have it."""
        on_device = self.provider != "cpu" and self.precision != "float32"
        return on_device or self.precision == "float16"

    @property
    def is_steady(self) -> bool:
        """Whether rows get the same bits in passes of any width, at a price; for CPUs only."""
        return self.provider == "cpu"

    @property
    def is_quantised(self) -> bool:
        """Whether weights are stored in integer blocks."""
        return self.precision in ("int4", "int8")


@dataclass(frozen=True, kw_only=True)
class Trim:
    """To which tokens the drafts' heads are trimmed: the `size` most useful, or those `listed`.

    `texts` and `counts` are files that say which tokens are used most.
    """

    size: int | None = None
    listed: Path | None = None
    texts: tuple[Path, ...] = ()
    counts: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole export. `models` starts with the target; drafts follow, nearest to it first."""

    output: Path
    models: tuple[ModelPlan, ...]
    trim: Trim | None = None
    overwrite: bool = False


@dataclass(frozen=True, kw_only=True)
class AddPlan:
    """Drafts for the bundle at `output`; one without a name (`""`) gets the next that is free."""

    output: Path
    models: tuple[ModelPlan, ...]
    trim: Trim | None = None


def make_plan(
    *,
    target: str,
    output: Path,
    drafts: Sequence[str] = (),
    precision: str | None = None,
    draft_precision: str | None = None,
    block_size: int | None = None,
    context: int | None = None,
    flavour: str | None = None,
    provider: str = "cpu",
    trim: Trim | None = None,
    overwrite: bool = False,
) -> Plan:
    """Check the options and return the plan.

    Raises PlanError that names the option.
    """
    wishes = _given(precision, block_size, flavour, provider)
    precision = DEFAULT_PRECISION if precision is None else precision
    _check_common(precision, block_size, context)
    _check_precision("--draft-precision", draft_precision or precision)
    if draft_precision is not None and not drafts:
        raise PlanError("--draft-precision is given, but no --draft")
    if trim is not None and not drafts:
        raise PlanError("--draft-vocab is given, but no --draft: a target's head is never trimmed")
    _check_references("--target", [target])
    _check_references("--draft", drafts)
    flavour = _choose_flavour(flavour, provider, context)
    for each in (precision, draft_precision or precision):
        _check_graph(flavour, provider, each, block_size)
    draft_wishes = _given(None, block_size, flavour, provider, draft_precision)
    models = [
        ModelPlan(
            name=draft_name(place) if place else "target",
            role="draft" if place else "target",
            reference=reference,
            precision=(draft_precision or precision) if place else precision,
            block_size=block_size,
            context=context,
            flavour=flavour,
            provider=provider,
            wishes=draft_wishes if place and draft_precision is not None else wishes,
        )
        for place, reference in enumerate((target, *drafts))
    ]
    return Plan(output=output, models=tuple(models), trim=trim, overwrite=overwrite)


def make_add_plan(
    *,
    output: Path,
    drafts: Sequence[str],
    name: str | None = None,
    precision: str | None = None,
    block_size: int | None = None,
    context: int | None = None,
    flavour: str | None = None,
    provider: str = "cpu",
    trim: Trim | None = None,
) -> AddPlan:
    """Check the options for drafts that join the bundle at `output` and return the plan.

    Raises PlanError that names the option.
    """
    wishes = _given(precision, block_size, flavour, provider)
    precision = DEFAULT_PRECISION if precision is None else precision
    _check_common(precision, block_size, context)
    flavour = _choose_flavour(flavour, provider, context)
    _check_graph(flavour, provider, precision, block_size)
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
            flavour=flavour,
            provider=provider,
            wishes=wishes,
        )
        for reference in drafts
    )
    return AddPlan(output=output, models=models, trim=trim)


def make_trim(
    draft_vocab: str | None, *, texts: Sequence[Path] = (), counts: Sequence[Path] = ()
) -> Trim | None:
    """Check how drafts' heads are to be trimmed; `None` leaves them whole.

    `draft_vocab` is a number of tokens, or the path of a file that lists them.
    Raises PlanError that names the option.
    """
    options = {"--vocab-text": texts, "--vocab-counts": counts}
    given = next((option for option, files in options.items() if files), None)
    if draft_vocab is None:
        if given is not None:
            raise PlanError(f"{given} is given, but no --draft-vocab N to choose tokens for")
        return None
    if draft_vocab.isascii() and draft_vocab.isdecimal():
        return Trim(size=int(draft_vocab), texts=tuple(texts), counts=tuple(counts))
    if not Path(draft_vocab).is_file():
        raise PlanError(
            "--draft-vocab must be a number of tokens or a file that lists them, but is "
            f"{draft_vocab!r}"
        )
    if given is not None:
        raise PlanError(f"{given} helps to choose tokens, but {draft_vocab} lists them already")
    return Trim(listed=Path(draft_vocab))


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


def _given(
    precision: str | None,
    block_size: int | None,
    flavour: str | None,
    provider: str,
    draft_precision: str | None = None,
) -> tuple[str, ...]:
    options = {
        "--precision": precision,
        "--draft-precision": draft_precision,
        "--block-size": block_size,
        "--flavour": flavour,
        "--provider": None if provider == "cpu" else provider,
    }
    return tuple(name for name, value in options.items() if value is not None)


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


def _choose_flavour(flavour: str | None, provider: str, context: int | None) -> str:
    if provider not in PROVIDERS:
        raise PlanError(f"--provider must be one of {', '.join(PROVIDERS)}, but is {provider!r}")
    flavour = PROVIDERS[provider] if flavour is None else flavour
    if flavour not in FLAVOURS:
        raise PlanError(f"--flavour must be one of {', '.join(FLAVOURS)}, but is {flavour!r}")
    if provider == "tensorrt" and flavour == "fused":
        raise PlanError("--provider tensorrt needs --flavour portable: it reads standard ops alone")
    if provider == "tensorrt" and context is None:
        raise PlanError(
            "--provider tensorrt needs --context, 4096 for instance: the cache's size is built "
            "into the engine, and each pass reads all of it"
        )
    return flavour


def _check_graph(flavour: str, provider: str, precision: str, block_size: int | None) -> None:
    if flavour == "fused":
        if provider == "cuda" and precision == "float32":
            raise PlanError(
                "--precision float32 does not go with --provider cuda: its fused attention has "
                "float16 alone; choose int4, int8 or float16, or --flavour portable"
            )
        return
    if precision == "int8":
        raise PlanError(
            f"--precision int8 needs --flavour fused: TensorRT, which --flavour {flavour} is for, "
            "reads no blocks of int8; choose int4, float16 or float32"
        )
    if block_size is not None and block_size > LARGEST_STANDARD_BLOCK:
        raise PlanError(
            f"--block-size must be at most {LARGEST_STANDARD_BLOCK} with --flavour {flavour}, but "
            f"is {block_size}"
        )


def _check_precision(option: str, precision: str) -> None:
    if precision in PRECISIONS:
        return
    reason = f": {_NO_KERNELS[precision]}" if precision in _NO_KERNELS else ""
    raise PlanError(
        f"{option} must be one of {', '.join(PRECISIONS)}, but is {precision!r}{reason}"
    )
