"""Adopt a decoder that another exporter wrote: its files as they are, and an entry that fits them.

In: a plan and a checkpoint of the form `onnx`. Out: the graph and its weights in the staging
folder, byte for byte, and the model's manifest entry with what blocks of tokens differ from single
steps by. Caches are updated in place if the graph allows it and gives the same that way.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BundleError
from runtime.manifest import ModelEntry

from . import parity
from .build import Built
from .bundle import Staging, writing
from .checkpoint import Checkpoint
from .decoder import Decoder, read_decoder
from .errors import ParityError, PlanError, UnsupportedModelError
from .language import Language
from .pair import check_width
from .plan import SHORTEST_CONTEXT, ModelPlan
from .progress import Progress


def adopt_model(
    plan: ModelPlan,
    checkpoint: Checkpoint,
    *,
    language: Language,
    staging: Staging,
    progress: Progress,
    kept: NDArray[np.int64] | None = None,
) -> Built:
    """Copy `plan`'s model into `staging` and hold it against itself; `language` is the target's.

    Raises ExportError; nothing outside the staging folder was touched then.
    """
    if kept is not None:
        raise PlanError(
            f"--draft-vocab cannot trim {checkpoint.reference}, whose ONNX graph is adopted as it "
            "is: leave it out"
        )
    decoder = read_decoder(checkpoint)
    width, is_draft = decoder.logits, plan.role == "draft"
    check_width(language, name=plan.name, embeddings=width, logits=width, is_draft=is_draft)
    folder = staging.make_folder(plan.name)
    total = sum(file.stat().st_size for file in decoder.files)
    with progress.stage(f"{plan.name}: copy", total=total, unit="bytes") as stage, writing(folder):
        for file in decoder.files:
            shutil.copyfile(file, folder / file.name)
            stage.advance(file.stat().st_size)
    entry = _entry(plan, checkpoint, decoder)
    with progress.stage(f"{plan.name}: compare blocks with single steps"):
        return _check(staging.folder / entry.graph, entry, decoder)


def _check(graph: Path, entry: ModelEntry, decoder: Decoder) -> Built:
    """Choose how caches are kept, by what gives the graph's own single steps."""
    notes = list(decoder.notes)
    try:
        steps = parity.score_singly(graph, entry)
        if decoder.shares:
            shared = replace(entry, flavour="shared")
            try:
                figures = parity.compare_with_steps(graph, shared, steps)
                return Built(entry=replace(shared, parity=figures), notes=tuple(notes))
            except ParityError as error:
                notes.append(f"caches grow, as it is wrong with caches in place: {error}")
        figures = parity.compare_with_steps(graph, entry, steps)
    except BundleError as error:
        raise UnsupportedModelError(f"the graph cannot be run: {error}") from None
    return Built(entry=replace(entry, parity=figures), notes=tuple(notes))


def _entry(plan: ModelPlan, checkpoint: Checkpoint, decoder: Decoder) -> ModelEntry:
    context = decoder.context if plan.context is None else min(plan.context, decoder.context)
    if plan.context is not None and plan.context > decoder.context:
        raise UnsupportedModelError(
            f"--context {plan.context} exceeds what {checkpoint.reference} was made for: "
            f"{decoder.context} tokens"
        )
    if context < SHORTEST_CONTEXT:
        raise UnsupportedModelError(
            f"{checkpoint.reference} was made for {context} tokens, fewer than the "
            f"{SHORTEST_CONTEXT} that it is checked with"
        )
    return ModelEntry(
        name=plan.name,
        role=plan.role,
        graph=f"{plan.name}/{decoder.files[0].name}",
        flavour="growing",
        precision=decoder.precision,
        architecture=decoder.architecture,
        logits=decoder.logits,
        embeddings=decoder.logits,
        context=context,
        cache=decoder.layout,
        parameters=decoder.parameters,
        source=checkpoint.source,
        licence=checkpoint.licence,
        block_size=decoder.block_size,
    )
