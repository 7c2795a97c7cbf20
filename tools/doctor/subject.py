"""What a doctor is asked about: a bundle, or checkpoints that become one.

In: what `--target` and `--draft` name. Out: do they speak one language, how large are they, and a
bundle to measure. Checkpoints are exported in a process of their own, so that none of PyTorch's
memory is left when passes are timed.
"""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from export.checkpoint import Checkpoint, resolve
from export.errors import PairMismatchError
from export.integrity import check_checkpoint, count_parameters
from export.progress import Progress
from runtime.manifest import MANIFEST_NAME
from runtime.storage import user_path
from tools.errors import ToolError

_BITS = {"int4": 4.5, "int8": 8.25, "float16": 16.0, "float32": 32.0}  # a weight with its scales


@dataclass(frozen=True)
class Pair:
    """Checkpoints side by side, before anything is exported or run.

    `mismatch` says in words why they do not speak one language; `weight_bytes` is an estimate for
    each model from the number of its weights, the target's first.
    """

    mismatch: str | None
    weight_bytes: dict[str, int]


def is_bundle(reference: str) -> bool:
    """Whether `reference` names a bundle's folder rather than a checkpoint."""
    return (user_path(reference) / MANIFEST_NAME).is_file()


def compare_checkpoints(references: Sequence[str], *, precision: str, progress: Progress) -> Pair:
    """Read the heads of checkpoints, the target's first, and compare their languages.

    Raises:
        ExportError: one of them is not there, or not sound.
    """
    checkpoints = [resolve(reference, progress=progress) for reference in references]
    with progress.stage("read the checkpoints"):
        for checkpoint in checkpoints:
            check_checkpoint(checkpoint)
        mismatch = _find_mismatch(checkpoints)
        names = ["target", *(f"draft{i or ''}" for i in range(len(checkpoints) - 1))]
        sizes = [int(count_parameters(c) * _BITS[precision] / 8) for c in checkpoints]
    return Pair(mismatch, dict(zip(names, sizes, strict=True)))


def export_checkpoints(
    references: Sequence[str],
    output: Path,
    *,
    precision: str,
    is_quiet: bool,
    flavour: str | None = None,
) -> None:
    """Export the checkpoints, the target's first, into the bundle `output`.

    Raises:
        ToolError: the export failed; its own sentence stands on standard error.
    """
    target, *drafts = references
    options = ["--target", target, "--output", str(output), "--precision", precision]
    options += [] if flavour is None else ["--flavour", flavour]
    options += [word for draft in drafts for word in ("--draft", draft)]
    options += ["--quiet"] if is_quiet else []
    run = subprocess.run([sys.executable, "-m", "export", *options], check=False, stdout=sys.stderr)
    if run.returncode:
        raise ToolError("the checkpoints cannot be exported, so nothing can be run; see above")


def _find_mismatch(checkpoints: Sequence[Checkpoint]) -> str | None:
    from export.language import read_language  # loads transformers, which a bundle does not need
    from export.pair import check_languages

    target, *drafts = [read_language(checkpoint) for checkpoint in checkpoints]
    for draft in drafts:
        try:
            check_languages(target, draft)
        except PairMismatchError as error:
            return str(error)
    return None
