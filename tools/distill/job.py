"""The order in which a drafter is made, and nothing else.

In: options. Out: the drafter's folder in its place, whole, and lines about it; or an error, and
what was there before is as it was.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from export.bundle import staged, writing
from export.checkpoint import Checkpoint, resolve
from export.errors import PlanError
from export.integrity import check_checkpoint
from export.language import Language, read_language
from export.pair import check_languages, check_width
from export.progress import Progress
from export.shortlist import choose_most_useful
from export.source_model import load_source
from runtime import Engine
from runtime.cost_plot import check_plot
from runtime.costs import CostTable
from runtime.storage import cache_folder
from tools.doctor.subject import export_checkpoints
from tools.errors import ToolError

from .batches import Columns
from .corpus import Corpus, extend_corpus, open_corpus
from .drafter import (
    VOCABULARY_FILE,
    Drafter,
    count_layers,
    count_passed,
    make_drafter,
    read_layers,
    save_drafter,
    spread_layers,
)
from .forecast import Forecast, add_drafter, make_forecasts
from .measure import Acceptance
from .options import DEFAULT_LAYERS, Options
from .record import RECORD_FILE, describe_best, describe_point, draw_curve, make_record
from .samples import Sample
from .source import Source
from .training import Point, Settings, train_drafter
from .writer import Writer

_STATE_FILE = "state.pt"
_CUDA_BATCH, _CPU_BATCH = 8192, 1024
_MINUTES = 30.0


def distil(options: Options, *, progress: Progress) -> list[str]:
    """Make the drafter that the options ask for; return lines about it.

    Raises ForerunError.
    """
    device = _choose_device(options.device)
    if options.plot is not None:
        check_plot(options.plot)
    _check_output(options.output, overwrite=options.overwrite)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    target = resolve(options.target, progress=progress)
    source = target if options.init_from is None else resolve(options.init_from, progress=progress)
    with progress.stage("check the checkpoints"):
        language = _check_pair(target, source)
        # What cannot be is refused before hours are spent.
        layers = _choose_layers(options, source)
        _keep_tokens(options.vocabulary, Counter(), language)
    costs = _read_costs(options.bundle, language, progress)
    corpus = _obtain_corpus(options, target, language, progress)
    train, held = corpus.read_train(), corpus.read_held()
    work = options.output.with_name(f".{options.output.name}.distil")
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
    with progress.stage("build the drafter"):
        kept = _keep_tokens(options.vocabulary, _count_tokens(train), language)
        drafter = _build(options, target, source, layers, kept)
        check_width(
            language,
            name=source.reference,
            embeddings=drafter.rows,
            logits=drafter.rows,
            is_draft=source is not target,
        )
        drafter.move(device)
    table = None if costs is None else add_drafter(costs, drafter.share)

    def foresee(acceptance: Acceptance) -> Mapping[float, Forecast]:
        return {} if table is None else make_forecasts(acceptance, table)

    settings = _settings(options, device)
    columns = Columns(drafter.kept, language.vocabulary)
    curve = train_drafter(
        drafter,
        train,
        held,
        columns,
        settings,
        state_file=work / _STATE_FILE,
        identity=_identify(drafter, corpus, options),
        progress=progress,
        on_point=lambda point: progress.note(describe_point(point, foresee(point.acceptance))),
    )
    best = max(curve, key=lambda point: point.acceptance.mean)
    forecasts = foresee(best.acceptance)
    record = _record(options, drafter, corpus, settings, curve, best, forecasts)
    with progress.stage("write the checkpoint"), staged(options.output) as staging:
        save_drafter(drafter, language, staging.folder)
        staging.write(RECORD_FILE, record.encode("utf-8"))
        staging.put()
    shutil.rmtree(work, ignore_errors=True)
    if options.plot is not None:
        with writing(options.plot):
            draw_curve(curve, options.plot)
    named = ",".join(map(str, layers))
    return [
        f"{options.output}: layers {named} of {source.source}, {len(kept)} tokens to propose, "
        f"{drafter.share:.3f} of the target's weights a token; best after {best.tokens} tokens",
        *describe_best(best.acceptance, forecasts),
        f"next: python -m export --draft {options.output} --draft-vocab "
        f"{options.output / VOCABULARY_FILE} ...",
    ]


def _choose_device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "cuda" and not has_cuda:
        raise ToolError("--device cuda: PyTorch sees no CUDA device here; leave it out")
    return torch.device("cuda" if has_cuda and name != "cpu" else "cpu")


def _check_output(output: Path, *, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise ToolError(f"--output {output} is a file; name a folder")
    if not output.exists() or not any(output.iterdir()):
        return
    if not overwrite:
        raise ToolError(f"--output {output} is not empty: name another folder, or add --overwrite")
    if not (output / RECORD_FILE).is_file():
        raise ToolError(
            f"--output {output} holds no drafter of this tool: --overwrite replaces those only"
        )


def _check_pair(target: Checkpoint, source: Checkpoint) -> Language:
    check_checkpoint(target)
    language = read_language(target)
    if source is not target:
        check_checkpoint(source)
        check_languages(language, read_language(source))
    return language


def _obtain_corpus(
    options: Options, target: Checkpoint, language: Language, progress: Progress
) -> Corpus:
    name = "".join(c if c.isalnum() else "-" for c in target.source.lower())[:60]
    folder = options.data
    if folder is None:
        folder = cache_folder() / "distil" / f"{name}-{language.fingerprint[:12]}"
    corpus = open_corpus(folder, fingerprint=language.fingerprint)
    is_whole = bool(corpus.train and corpus.held)
    if is_whole and corpus.tokens >= options.data_tokens:
        return corpus
    if options.data_tokens == 0:
        raise ToolError(f"--data {folder} holds no text yet: ask for some with --data-tokens")
    source = Source(
        prompts=options.prompts,
        texts=options.texts,
        answer_tokens=options.answer_tokens,
        batch=options.sequences,
        seed=options.seed,
    )

    def open_writer() -> Writer:
        bundle = options.writer
        if bundle is None:
            bundle = folder / f"writer-{options.precision}"
            if not bundle.is_dir():
                export_checkpoints(
                    [options.target],
                    bundle,
                    precision=options.precision,
                    is_quiet=options.quiet,
                    flavour="portable",
                )
        writer = Writer.open(bundle, source, threads=options.threads, provider=options.provider)
        if writer.fingerprint != language.fingerprint:
            raise ToolError(f"--writer {bundle} has another tokenizer than the target's")
        return writer

    return extend_corpus(folder, open_writer, source, tokens=options.data_tokens, progress=progress)


def _choose_layers(options: Options, source: Checkpoint) -> tuple[int, ...]:
    there = count_layers(source)
    if options.init_layers is not None:
        return read_layers(options.init_layers, there)
    return spread_layers(options.layers or DEFAULT_LAYERS, there)


def _count_tokens(samples: Sequence[Sample]) -> Counter[int]:
    counts = Counter[int]()
    for sample in samples:
        counts.update(sample.tokens[sample.start :].tolist())
    return counts


def _keep_tokens(wanted: int, counts: Counter[int], language: Language) -> NDArray[np.int64]:
    """Return the tokens that may be proposed: those that the text shows most, and special ones."""
    if wanted >= language.vocabulary:
        return np.arange(language.vocabulary)
    try:
        return choose_most_useful(wanted, language, counts)
    except PlanError as error:
        raise ToolError(str(error).replace("--draft-vocab", "--vocab")) from None


def _build(
    options: Options,
    target: Checkpoint,
    source: Checkpoint,
    layers: tuple[int, ...],
    kept: NDArray[np.int64],
) -> Drafter:
    model = load_source(target, context=None).model
    weights = count_passed(model)
    if source is not target:
        model = load_source(source, context=None).model
    return make_drafter(
        model,
        layers=layers,
        kept=kept,
        target_weights=weights,
        trains_embeddings=options.train_embeddings,
    )


def _read_costs(bundle: Path | None, language: Language, progress: Progress) -> CostTable | None:
    """Return what the passes of a bundle cost here, measured if that is not known yet."""
    if bundle is None:
        return None
    with progress.stage("what passes cost here"), Engine.open(bundle) as engine:
        if engine.bundle.manifest.tokenizer.fingerprint != language.fingerprint:
            raise ToolError(f"--bundle {bundle} has another tokenizer than the target's")
        return engine.costs()


def _settings(options: Options, device: torch.device) -> Settings:
    usual = _CUDA_BATCH if device.type == "cuda" else _CPU_BATCH
    seconds = None if options.tokens is not None else 60 * (options.minutes or _MINUTES)
    return Settings(
        seconds=seconds,
        tokens=options.tokens,
        loss=options.loss,
        rate=options.rate,
        batch_tokens=options.batch or usual,
        points=options.points,
        seed=options.seed,
    )


def _identify(drafter: Drafter, corpus: Corpus, options: Options) -> str:
    """Return a digest of what a kept state must agree on to go on from it."""
    weights = {name: tuple(p.shape) for name, p in drafter.trained().items()}
    facts = (drafter.source_layers, drafter.kept.tolist(), weights, corpus.digest)
    words = repr((options.target, options.init_from, facts))
    return hashlib.sha256(words.encode()).hexdigest()


def _record(
    options: Options,
    drafter: Drafter,
    corpus: Corpus,
    settings: Settings,
    curve: Sequence[Point],
    best: Point,
    forecasts: Mapping[float, Forecast],
) -> str:
    named = {
        k: v if isinstance(v, int | float | None) else str(v) for k, v in vars(options).items()
    }
    return make_record(
        curve,
        best,
        forecasts,
        options=named,
        settings=asdict(settings),
        device=str(drafter.device),
        torch=torch.__version__,
        layers=list(drafter.source_layers),
        kept=len(drafter.kept),
        share=drafter.share,
        corpus={"tokens": corpus.tokens, "digest": corpus.digest},
    )
