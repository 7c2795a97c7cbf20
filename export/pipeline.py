"""The order in which a bundle is exported, or drafts are added to one, and nothing else.

In: a plan. Out: `Report`, the bundle being in its place; or an error, and nothing has changed.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.manifest import Manifest, Tokenizer

from . import pair
from .adopt import adopt_model
from .build import Built, build_model
from .bundle import Staging, check_output, check_space, staged
from .checkpoint import Checkpoint, resolve
from .decoder import check_wishes, count_bytes
from .integrity import check_checkpoint, count_parameters
from .language import Language, language_of, read_language
from .plan import AddPlan, ModelPlan, Plan, Trim
from .progress import Progress
from .quiet import quiet_transformers
from .report import Report
from .shortlist import choose_tokens
from .stages import name_drafts, open_whole, with_drafts

TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"
_BYTES = {"int4": 0.75, "int8": 1.25, "float16": 2.0, "float32": 4.0}  # per weight, generously


def export_bundle(plan: Plan, *, progress: Progress) -> Report:
    """Build what `plan` says and put it into its place.

    Raises ExportError; what was at `plan.output` before is untouched then.
    """
    check_output(plan.output, overwrite=plan.overwrite)
    checkpoints = [resolve(model.reference, progress=progress) for model in plan.models]
    check_wishes(plan.models, checkpoints)
    with progress.stage("check the checkpoints"):
        languages = _read_languages(checkpoints)
        for draft in languages[1:]:
            pair.check_languages(languages[0], draft)
        check_space(plan.output, _needed_bytes(plan.models, checkpoints))
    kept = _kept(plan.trim, languages[0], progress)
    with staged(plan.output) as staging, quiet_transformers():
        built = _build(plan.models, checkpoints, languages[0], kept, staging, progress)
        with progress.stage("publish"):
            manifest = _publish(staging, languages[0], built)
    return _report(plan.output, manifest, progress, _notes(languages, built))


def add_drafts(plan: AddPlan, *, progress: Progress) -> Report:
    """Build the drafts that `plan` says and put them into the bundle at its output.

    The target's checkpoint is not needed: the bundle's tokenizer decides what makes a pair.
    Raises ForerunError; the bundle is as it was then.
    """
    bundle = open_whole(plan.output, progress=progress)
    models = name_drafts(bundle, plan.models)
    checkpoints = [resolve(model.reference, progress=progress) for model in models]
    check_wishes(models, checkpoints)
    with progress.stage("check the checkpoints"):
        own, languages = language_of(bundle), _read_languages(checkpoints)
        for draft in languages:
            pair.check_languages(own, draft)
        check_space(plan.output, _needed_bytes(models, checkpoints))
    kept = _kept(plan.trim, own, progress)
    with staged(plan.output) as staging, quiet_transformers():
        built = _build(models, checkpoints, own, kept, staging, progress)
        with progress.stage("publish"):
            after = with_drafts(bundle.manifest, [draft.entry for draft in built])
            manifest = staging.amend(bundle.manifest, after)
    return _report(plan.output, manifest, progress, _notes(languages, built))


def _kept(trim: Trim | None, language: Language, progress: Progress) -> NDArray[np.int64] | None:
    return None if trim is None else choose_tokens(trim, language, progress=progress)


def _read_languages(checkpoints: Sequence[Checkpoint]) -> list[Language]:
    for checkpoint in checkpoints:
        check_checkpoint(checkpoint)
    return [read_language(checkpoint) for checkpoint in checkpoints]


def _build(
    models: Sequence[ModelPlan],
    checkpoints: Sequence[Checkpoint],
    language: Language,
    kept: NDArray[np.int64] | None,
    staging: Staging,
    progress: Progress,
) -> list[Built]:
    built = []
    for model, checkpoint in zip(models, checkpoints, strict=True):
        make = adopt_model if checkpoint.form == "onnx" else build_model
        built.append(
            make(
                model,
                checkpoint,
                language=language,
                staging=staging,
                progress=progress,
                kept=kept if model.role == "draft" else None,
            )
        )
    return built


def _needed_bytes(models: Sequence[ModelPlan], checkpoints: Sequence[Checkpoint]) -> int:
    """Return the most space that is taken at one time: all results and one float graph."""
    results, scratch = 0.0, [0]
    for model, checkpoint in zip(models, checkpoints, strict=True):
        if checkpoint.form == "onnx":
            results += count_bytes(checkpoint)
            continue
        size = count_parameters(checkpoint)
        results += size * _BYTES[model.precision]
        if model.precision != "float32":
            scratch.append(4 * size)
    return int(results + max(scratch))


def _publish(staging: Staging, language: Language, built: Sequence[Built]) -> Manifest:
    staging.write(TOKENIZER_NAME, language.tokenizer_json)
    if language.chat_template is not None:
        staging.write(TEMPLATE_NAME, language.chat_template.encode("utf-8"))
    tokenizer = Tokenizer(
        file=TOKENIZER_NAME,
        fingerprint=language.fingerprint,
        vocabulary=language.vocabulary,
        bos_token=language.bos_token,
        eos_token=language.eos_token,
        bos_id=language.bos_id,
        adds_bos=language.adds_bos,
        is_rebuilt=language.is_rebuilt,
        chat_template=None if language.chat_template is None else TEMPLATE_NAME,
    )
    manifest = Manifest(
        producer=f"forerun {_own_version()}",
        tokenizer=tokenizer,
        models=tuple(model.entry for model in built),
        files=(),
        end_ids=language.end_ids,
    )
    return staging.publish(manifest)


def _notes(languages: Sequence[Language], built: Sequence[Built]) -> list[str]:
    return [
        f"{model.entry.name}: {note}"
        for model, language in zip(built, languages, strict=True)
        for note in (*language.notes, *model.notes)
    ]


def _report(output: Path, manifest: Manifest, progress: Progress, notes: Sequence[str]) -> Report:
    return Report(
        output=output, manifest=manifest, seconds=dict(progress.seconds), notes=tuple(notes)
    )


def _own_version() -> str:
    try:
        return version("forerun")
    except PackageNotFoundError:
        return "0"
