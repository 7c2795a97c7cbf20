"""Which bundles are checked, where they lie, and how they are made.

In: the folder of prepared bundles. Out: `Subject`s. Making them needs the export toolchain and the
recipes' checkpoints; checking needs neither.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.storage import cache_folder

SMALL = "smollm2-135m-instruct"
TARGET, DRAFT = "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A bundle of the check: its name is its folder's, `provider` what it was made for."""

    name: str
    provider: str
    precision: str
    flavour: str
    target: str
    draft: str | None = None
    context: int | None = None


def _pair(name: str, provider: str, precision: str, flavour: str, context: int | None) -> Subject:
    return Subject(
        name=name,
        provider=provider,
        precision=precision,
        flavour=flavour,
        target=TARGET,
        draft=DRAFT,
        context=context,
    )


QUICK = (
    Subject(name="fused", provider="cpu", precision="float32", flavour="fused", target=SMALL),
    Subject(name="portable", provider="cpu", precision="float32", flavour="portable", target=SMALL),
    Subject(name="cuda", provider="cuda", precision="float16", flavour="fused", target=SMALL),
    Subject(
        name="tensorrt",
        provider="tensorrt",
        precision="float16",
        flavour="portable",
        target=SMALL,
        context=2048,
    ),
)
FULL = (
    *QUICK,
    _pair("cuda-pair", "cuda", "float16", "fused", 4096),
    _pair("cuda-pair-int4", "cuda", "int4", "fused", 4096),
    _pair("tensorrt-pair", "tensorrt", "float16", "portable", 4096),
    _pair("tensorrt-pair-int4", "tensorrt", "int4", "portable", 4096),
)


def default_folder() -> Path:
    """Return where bundles lie if no other folder is named."""
    return cache_folder() / "gpu_check"


def prepare(folder: Path, subjects: Sequence[Subject], *, tell: Callable[[str], None]) -> None:
    """Export the bundles that are not there; `tell` is given a line for each.

    Raises:
        ForerunError: a checkpoint is missing, or an export failed.
    """
    from export.pipeline import export_bundle
    from export.plan import make_plan
    from export.progress import Progress

    for subject in subjects:
        output = folder / subject.name
        if output.exists():
            tell(f"{output} is there")
            continue
        plan = make_plan(
            target=subject.target,
            drafts=[] if subject.draft is None else [subject.draft],
            output=output,
            precision=subject.precision,
            flavour=subject.flavour,
            provider=subject.provider,
            context=subject.context,
        )
        export_bundle(plan, progress=Progress(quiet=False))
        tell(f"{output} is made")
