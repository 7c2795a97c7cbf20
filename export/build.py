"""Build one model of a bundle: load, trace, pass, write, quantise, and hold it against PyTorch.

In: a plan and a checked checkpoint. Out: graph and weights in the staging folder and the model's
manifest entry, its parity figures in it; or an error. The checkpoint's own memory is given back
before sessions are opened, so that a large model is held once.
"""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from runtime.manifest import ModelEntry

from . import parity
from .attention import Flavour
from .attention.fused import FUSED
from .attention.portable import PORTABLE, TREES
from .bundle import Staging, writing
from .checkpoint import Checkpoint
from .dequantize import dequantize_model
from .errors import ParityError
from .halve import halve_model
from .importance import Importance, measure_importance
from .language import Language
from .pair import check_width
from .passes import STANDARD_VARIANTS, VARIANTS, SpeedPasses, prepare, prepare_standard
from .passes.finish import finish
from .passes.steady import steady_attention, steady_experts
from .passes.weights import place_weights
from .plan import ModelPlan
from .progress import Progress
from .prompts import EVERYDAY_TEXTS, PROMPTS
from .quantize import Storage, make_ladder, quantize_model
from .source_model import SourceModel, load_source
from .trace import Traced, trace
from .trim import trim_head
from .weightfile import read_weights_from, write_graph

FINE_KL = 0.2  # nats per token; int4 farther from the float graph is stored more finely
_GRAPH = "model.onnx"
FLAVOURS: dict[str, Flavour] = {flavour.name: flavour for flavour in (FUSED, PORTABLE, TREES)}
_TOKEN_IDS = "token_ids.npy"


@dataclass(frozen=True, kw_only=True)
class Built:
    """A model in the staging folder, and what is worth telling about it."""

    entry: ModelEntry
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _FloatGraph:
    """The float graph on disk, and the graph from which the others are written."""

    path: Path
    entry: ModelEntry
    prepared: ir.Model
    reference: parity.Reference
    importance: Importance | None
    figures: dict[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What every step of one model's build needs."""

    plan: ModelPlan
    checkpoint: Checkpoint
    language: Language
    staging: Staging
    progress: Progress
    prompts: Sequence[Sequence[int]]
    kept: NDArray[np.int64] | None

    @property
    def float_folder(self) -> str:
        """Where the float graph goes: into the bundle, or to where it is removed again."""
        return self.plan.name if self.plan.precision == "float32" else f"{self.plan.name}.float32"

    @property
    def is_standard(self) -> bool:
        """Whether the graph may hold standard ops alone."""
        return FLAVOURS[self.plan.flavour].is_standard


def build_model(
    plan: ModelPlan,
    checkpoint: Checkpoint,
    *,
    language: Language,
    staging: Staging,
    progress: Progress,
    kept: NDArray[np.int64] | None = None,
) -> Built:
    """Build `plan`'s model into `staging`; `language` is the target's.

    `kept` are the tokens, ascending, to which the model's head is trimmed.
    Raises ExportError; nothing outside the staging folder was touched then.
    """
    job = _Job(
        plan=plan,
        checkpoint=checkpoint,
        language=language,
        staging=staging,
        progress=progress,
        prompts=[language.encode(prompt) for prompt in PROMPTS],
        kept=kept,
    )
    built = _build(job)
    if kept is not None:
        assert built.entry.token_ids is not None
        with writing(staging.folder):
            np.save(staging.folder / built.entry.token_ids, kept.astype("<i4"))
    return built


def _build(job: _Job) -> Built:
    plan, language, staging, progress = job.plan, job.language, job.staging, job.progress
    made, gate = _make_float(job)
    if plan.precision == "float32":
        found = parity.compare_blocks(made.path, made.entry, made.reference, ())
        figures = made.figures | parity.as_figures(error=gate.error, block_error=found.error)
        return Built(entry=replace(made.entry, parity=figures), notes=made.notes)
    ladder: Sequence[Storage | None] = (None,)
    if plan.is_quantised:
        ladder = make_ladder(plan.precision, plan.block_size, is_standard=job.is_standard)
    for storage in ladder:
        entry = _write_precision(job, made, storage)
        with progress.stage(f"{plan.name}: check {plan.precision}"):
            found = parity.compare_blocks(_path(job, entry), entry, made.reference, job.prompts)
            drift = parity.measure_drift(gate.rows, found.rows, vocabulary=language.vocabulary)
        if drift.mean_kl <= FINE_KL or storage == ladder[-1]:
            break
        progress.note(
            f"{plan.name}: {_words(storage)} drifts {drift.mean_kl:.3f} nats per token from the "
            f"float graph, more than {FINE_KL:g}: stored more finely"
        )
        staging.remove_folder(plan.name)
    parity.check_drift(drift, precision=plan.precision)
    staging.remove_folder(job.float_folder)
    figures = made.figures | parity.as_figures(
        error=gate.error, block_error=found.error, drift=drift
    )
    notes = (*made.notes, *_storage_notes(storage, ladder))
    return Built(entry=replace(entry, parity=figures), notes=notes)


def _storage_notes(storage: Storage | None, ladder: Sequence[Storage | None]) -> list[str]:
    if storage is None or storage == ladder[0]:
        return []
    return [
        f"stored in {_words(storage)}, as coarser storage drifts more than {FINE_KL:g} nats per "
        "token from the float graph"
    ]


def _words(storage: Storage | None) -> str:
    if storage is None:
        return "half precision"
    kinds = f", {' and '.join(sorted(storage.finer))} layers in int8" if storage.finer else ""
    return f"blocks of {storage.block_size}{kinds}"


def _make_float(job: _Job) -> tuple[_FloatGraph, parity.Passed]:
    """Write the float graph with as many speed passes as parity allows."""
    variants = STANDARD_VARIANTS if job.is_standard else VARIANTS
    for speed in variants:
        made = _write_float(job, speed)
        gc.collect()  # the checkpoint's memory goes before the session's comes
        try:
            with job.progress.stage(f"{job.plan.name}: check float32"):
                gate = parity.check_float(made.path, made.entry, made.reference, job.prompts)
        except ParityError:
            if speed == variants[-1]:
                raise
            job.staging.remove_folder(job.float_folder)
            continue
        left_out = (f"left out, as parity fails with it: {speed.left_out}",)
        return replace(made, notes=made.notes + (left_out if speed.left_out else ())), gate
    raise AssertionError("the last variant returns or raises")


def _write_float(job: _Job, speed: SpeedPasses) -> _FloatGraph:
    name, progress = job.plan.name, job.progress
    figures: dict[str, Any] = {}
    with progress.stage(f"{name}: load"):
        source = load_source(job.checkpoint, context=job.plan.context)
        reference = parity.make_reference(source.model, vocabulary=job.language.vocabulary)
        _check_width(job, source, logits=reference.logits.shape[1])
        if job.kept is not None:
            figures["kept_mass"] = parity.measure_kept(
                source.model, job.prompts, job.kept, vocabulary=job.language.vocabulary
            )
            reference = reference.of_columns(job.kept)
            trim_head(source.model, job.kept)
        importance = _weigh_inputs(job, source)
    with progress.stage(f"{name}: trace"):
        traced = trace(source.model, FLAVOURS[job.plan.flavour])
        entry = _entry(job, source, traced)
        graph = traced.graph
        (prepare_standard if job.is_standard else prepare)(
            graph, context=source.context, speed=speed
        )
    folder = job.staging.make_folder(job.float_folder)
    with progress.stage(f"{name}: write float32", unit="bytes") as stage, writing(folder):
        lowered = graph.clone()
        if job.plan.is_steady:
            steady_attention(lowered)
            steady_experts(lowered)
        place_weights(lowered)
        finish(lowered, name=name)
        held = write_graph(lowered, folder / _GRAPH, f"{name}.weights", advance=stage.advance)
    read_weights_from(held, graph)
    return _FloatGraph(
        path=folder / _GRAPH,
        entry=entry,
        prepared=graph,
        reference=reference,
        importance=importance,
        figures=figures,
        notes=source.notes,
    )


def _check_width(job: _Job, source: SourceModel, *, logits: int) -> None:
    check_width(
        job.language,
        name=job.plan.name,
        embeddings=source.embeddings,
        logits=logits,
        is_draft=job.plan.role == "draft",
    )


def _weigh_inputs(job: _Job, source: SourceModel) -> Importance | None:
    """Measure what inputs carry, where rounding is coarse enough for it to matter."""
    if job.plan.precision != "int4":
        return None
    texts = [job.language.encode(text)[: source.context] for text in EVERYDAY_TEXTS]
    return measure_importance(source.model, texts)


def _write_precision(job: _Job, made: _FloatGraph, storage: Storage | None) -> ModelEntry:
    plan, graph = job.plan, made.prepared.clone()
    entry = _lowered_entry(plan, made.entry, storage)
    folder = job.staging.make_folder(plan.name)
    with (
        job.progress.stage(f"{plan.name}: write {plan.precision}", unit="bytes") as stage,
        writing(folder),
    ):
        if storage is not None:
            if storage.is_steady and plan.is_steady:
                steady_attention(graph)
            _quantize(job, graph, storage, made.importance)
        else:
            place_weights(graph)
        if plan.is_half:
            halve_model(graph)
        finish(graph, name=plan.name)
        write_graph(graph, folder / _GRAPH, f"{plan.name}.weights", advance=stage.advance)
    return entry


def _quantize(job: _Job, graph: ir.Model, storage: Storage, importance: Importance | None) -> None:
    if job.is_standard:
        dequantize_model(graph, block_size=storage.block_size, importance=importance)
    else:
        bits = 4 if job.plan.precision == "int4" else 8
        quantize_model(graph, bits=bits, storage=storage, importance=importance)


def _entry(job: _Job, source: SourceModel, traced: Traced) -> ModelEntry:
    plan = job.plan
    return ModelEntry(
        name=plan.name,
        role=plan.role,
        graph=f"{plan.name}/{_GRAPH}",
        flavour=plan.flavour,
        precision="float32",
        architecture=source.architecture,
        logits=traced.logits,
        embeddings=source.embeddings,
        context=source.context - traced.offset,
        cache=traced.layout,
        parameters=source.parameters,
        source=job.checkpoint.source,
        licence=job.checkpoint.licence,
        token_ids=None if job.kept is None else f"{plan.name}/{_TOKEN_IDS}",
    )


def _lowered_entry(plan: ModelPlan, entry: ModelEntry, storage: Storage | None) -> ModelEntry:
    cache = replace(entry.cache, dtype="float16" if plan.is_half else "float32")
    lowered = replace(entry, precision=plan.precision, cache=cache)
    if storage is None:
        return lowered
    finer = tuple(sorted(storage.finer))
    return replace(lowered, block_size=storage.block_size, int8_layers=finer)


def _path(job: _Job, entry: ModelEntry) -> Path:
    return job.staging.folder / entry.graph
