"""What `info` tells of a bundle, `store` of a store and `--explain` of choices, in plain words."""

from collections.abc import Iterator
from pathlib import Path

from .bundle import Bundle
from .costs import TARGET, CostTable
from .manifest import ModelEntry, NgramEntry
from .memory import CACHED_TOKENS, memory_bytes, token_bytes
from .model import OnnxModel
from .stages import default_stages
from .stats import Stats
from .store import MOST_BYTES, read_store

_MIB = 1 << 20
# Measured time ÷ the table's: beyond, the table is not this machine's of now.
_FAITHFUL = (0.9, 1.1)


def describe_bundle(bundle: Bundle, costs: CostTable | None = None) -> Iterator[str]:
    """Yield the lines that describe a bundle: stack, models, sizes, parity, tokenizer, costs."""
    manifest = bundle.manifest
    yield f"bundle     {bundle.folder}"
    yield f"made by    {manifest.producer}, format version {manifest.format_version}"
    words = manifest.tokenizer
    template = "with" if words.chat_template else "without"
    yield f"tokenizer  {words.vocabulary} tokens, {template} a chat template"
    yield f"ends at    {', '.join(map(str, manifest.end_ids)) or 'no token'}"
    drafts = [draft.name for draft in manifest.drafts]
    stages = default_stages(drafts, is_controlled=True)
    yield f"stack      {' → '.join([*map(str, stages), TARGET])}, unless --stages says otherwise"
    for model in manifest.models:
        yield ""
        yield from _describe_model(bundle, model)
        yield f"  a pass        {_describe_passes(model, costs)}"
    if manifest.ngram is not None:
        yield ""
        yield from _describe_ngram(bundle, manifest.ngram)


def describe_placement(model: OnnxModel) -> str:
    """Return which nodes of an opened model run where."""
    session = model.session
    where = f"{model.name}: {session.provider.name}"
    if session.placement is None:
        return f"{where}; this ONNX Runtime does not say which nodes run there"
    if not session.placement.nodes:
        return f"{where}, all nodes"
    counts = [f"{count} on {name}" for name, count in sorted(session.placement.nodes.items())]
    strays = session.placement.strays
    fell = ", ".join(f"{count} {op}" for op, count in sorted(strays.items()))
    return f"{where}; nodes: {', '.join(counts)}" + (f"; fell back: {fell}" if strays else "")


def describe_store(path: Path) -> dict[str, str | int]:
    """Return what a store holds, by name.

    Raises:
        StoreError: there is no store at `path`.
    """
    contents = read_store(path)
    return {
        "store": str(path),
        "sequences": len(contents.records),
        "tokens": contents.tokens,
        "bytes": path.stat().st_size,
        "most_bytes": MOST_BYTES,
        "tokenizer": contents.fingerprint,
    }


def _describe_model(bundle: Bundle, model: ModelEntry) -> Iterator[str]:
    yield f"{model.role} {model.name!r}: {model.source}"
    yield f"  architecture  {model.architecture}, {model.parameters / 1e6:.0f} million parameters"
    block = f" in blocks of {model.block_size}" if model.block_size else ""
    finer = f" ({' and '.join(model.int8_layers)} layers in int8)" if model.int8_layers else ""
    yield f"  weights       {model.precision}{block}{finer}, {model.flavour} graph"
    if model.token_ids is not None:
        words = bundle.manifest.tokenizer.vocabulary
        mass = model.parity.get("kept_mass")
        share = "" if mass is None else f", which have {100 * mass:.1f} % of its probability"
        yield f"  head          trimmed to {model.logits} of {words} tokens{share}"
    yield f"  on disk       {bundle.weight_bytes(model) / _MIB:.1f} MiB"
    yield f"  context       {model.context} tokens"
    yield f"  cache         {token_bytes(model) / 1024:.1f} KiB a token, {model.cache.dtype}"
    needed = memory_bytes(bundle, model) / _MIB
    yield f"  in memory     {needed:.1f} MiB, a cache of {CACHED_TOKENS} tokens included"
    steady = "the same" if model.is_steady else "rounded differently"
    yield f"  numerics      a token alone and in a block: {steady}"
    yield f"  licence       {model.licence or 'not stated'}"
    yield from _describe_parity(model)


def _describe_passes(model: ModelEntry, costs: CostTable | None) -> str:
    name = TARGET if model.role == TARGET else model.name
    if costs is None or name not in costs.models:
        return "not measured here yet: python -m runtime costs"
    taken = [(width, costs.seconds(name, width=width, depth=costs.depth)) for width in (1, 4, 8)]
    said = ", ".join(f"{1e3 * seconds:.1f} ms for {width}" for width, seconds in taken)
    return f"{said} tokens (python -m runtime costs)"


def _describe_ngram(bundle: Bundle, table: NgramEntry) -> Iterator[str]:
    size = (bundle.folder / table.file).stat().st_size
    yield f"n-grams 'ngram': up to {table.order} tokens, of {table.source}"
    yield f"  counted       {table.counted} tokens"
    yield f"  on disk       {size / _MIB:.1f} MiB"


def _describe_parity(model: ModelEntry) -> Iterator[str]:
    parity = model.parity
    if "max_error" in parity:
        yield (
            f"  float graph   within {parity['max_error']:.1e} of the logits' range of PyTorch "
            f"(limit {parity['tolerance']:.0e})"
        )
    if "mean_kl" in parity:
        yield (
            f"  {model.precision:<13} {parity['mean_kl']:.3f} nats per token from the float graph, "
            f"same first choice {100 * parity['top1_agreement']:.0f} % of {parity['tokens']} tokens"
        )


def explain(stats: Stats) -> Iterator[str]:
    """Yield lines that say what was drafted and why: predicted against measured."""
    choices = stats.choices
    if choices is None or not choices.emitted_tokens:
        yield "nothing was chosen: drafting was off, lengths were fixed, or the answer was short"
        return
    rounds = sum(chosen.rounds for chosen in choices.rounds)
    yield f"{rounds} rounds after the first token, each chosen by expected tokens a second:"
    for chosen in choices.rounds:
        drafted = f"{chosen.tokens} token{'s' * (chosen.tokens > 1)} by {chosen.drafter}"
        share = 100 * chosen.rounds / rounds
        yield f"  {share:3.0f} %  {drafted if chosen.tokens else 'a plain step'}"
    expected = choices.expected_tokens / choices.expected_seconds
    measured = choices.emitted_tokens / choices.measured_seconds
    yield (
        f"tokens a round: expected {choices.expected_tokens / rounds:.2f}, "
        f"came {choices.emitted_tokens / rounds:.2f}"
    )
    yield (
        f"milliseconds a round: by the cost table "
        f"{1000 * choices.expected_seconds / rounds:.1f}, measured "
        f"{1000 * choices.measured_seconds / rounds:.1f}"
    )
    yield f"tokens a second: predicted {expected:.1f}, measured {measured:.1f}"
    yield (
        f"speed-up over plain decoding, at the table's cost of a plain step: predicted "
        f"{choices.plain_seconds / choices.expected_seconds:.2f}, measured "
        f"{choices.plain_seconds / choices.measured_seconds:.2f}"
    )
    drift = choices.measured_seconds / choices.expected_seconds
    if not _FAITHFUL[0] <= drift <= _FAITHFUL[1]:
        yield (
            f"rounds took {drift:.2f} times what the cost table says: the machine is busier or "
            "cooler than when it was measured; measure again with python -m runtime costs --refresh"
        )
