"""The order of an export's stages, and nothing else.

In: a `Plan`. Out: `Report`, the bundle being in its place; or an error, and nothing has changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from runtime.manifest import Manifest, ModelEntry, Tokenizer

from . import pair
from .build import Built, build_model
from .bundle import Staging, check_output, check_space, staged
from .checkpoint import Checkpoint, resolve
from .integrity import check_checkpoint, count_parameters
from .language import Language, read_language
from .plan import ModelPlan, Plan
from .progress import Progress
from .quiet import quiet_transformers

TOKENIZER_NAME = "tokenizer.json"
TEMPLATE_NAME = "chat_template.jinja"
_BYTES = {"int4": 0.75, "int8": 1.25, "float16": 2.0, "float32": 4.0}  # per weight, generously


@dataclass(frozen=True, kw_only=True)
class Report:
    """What an export made: the bundle's manifest, stage times and remarks, for people and JSON."""

    output: Path
    manifest: Manifest
    seconds: dict[str, float]
    notes: tuple[str, ...]

    def model_bytes(self, entry: ModelEntry) -> int:
        """Return the size of one model's graph and weights."""
        return sum(f.bytes for f in self.manifest.files if f.path.startswith(f"{entry.name}/"))

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "bundle": str(self.output),
            "bytes": sum(file.bytes for file in self.manifest.files),
            "end_ids": list(self.manifest.end_ids),
            "models": [
                {
                    "name": model.name,
                    "source": model.source,
                    "architecture": model.architecture,
                    "precision": model.precision,
                    "parameters": model.parameters,
                    "context": model.context,
                    "bytes": self.model_bytes(model),
                    "parity": dict(model.parity),
                }
                for model in self.manifest.models
            ],
            "notes": list(self.notes),
            "seconds": {name: round(seconds, 2) for name, seconds in self.seconds.items()},
        }


def export_bundle(plan: Plan, *, progress: Progress) -> Report:
    """Build what `plan` says and put it into its place.

    Raises ExportError; what was at `plan.output` before is untouched then.
    """
    check_output(plan.output, overwrite=plan.overwrite)
    checkpoints = [resolve(model.reference, progress=progress) for model in plan.models]
    with progress.stage("check the checkpoints"):
        for checkpoint in checkpoints:
            check_checkpoint(checkpoint)
        languages = [read_language(checkpoint) for checkpoint in checkpoints]
        _check_pairs(checkpoints, languages)
        check_space(plan.output, _needed_bytes(plan.models, checkpoints))
    with staged(plan.output) as staging, quiet_transformers():
        built = [
            build_model(
                model, checkpoint, language=languages[0], staging=staging, progress=progress
            )
            for model, checkpoint in zip(plan.models, checkpoints, strict=True)
        ]
        with progress.stage("publish"):
            manifest = _publish(staging, languages[0], built)
    return Report(
        output=plan.output,
        manifest=manifest,
        seconds=dict(progress.seconds),
        notes=tuple(_notes(languages, built)),
    )


def _check_pairs(checkpoints: Sequence[Checkpoint], languages: Sequence[Language]) -> None:
    for checkpoint, draft in zip(checkpoints[1:], languages[1:], strict=True):
        rebuilt = checkpoint.form == "gguf" or checkpoints[0].form == "gguf"
        pair.check_languages(languages[0], draft, rules_are_rebuilt=rebuilt)


def _needed_bytes(models: Sequence[ModelPlan], checkpoints: Sequence[Checkpoint]) -> int:
    """Return the most space that is taken at one time: all results and one float graph."""
    sizes = [count_parameters(checkpoint) for checkpoint in checkpoints]
    results = sum(n * _BYTES[m.precision] for n, m in zip(sizes, models, strict=True))
    scratch = [4 * n for n, m in zip(sizes, models, strict=True) if m.precision != "float32"]
    return int(results + max(scratch, default=0))


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


def _own_version() -> str:
    try:
        return version("forerun")
    except PackageNotFoundError:
        return "0"
