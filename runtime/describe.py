"""A bundle in plain words, for people who ask `info`."""

from collections.abc import Iterator

from .bundle import Bundle
from .manifest import ModelEntry

_MIB = 1 << 20


def describe_bundle(bundle: Bundle) -> Iterator[str]:
    """Yield the lines that describe a bundle: models, sizes, parity, tokenizer."""
    manifest = bundle.manifest
    yield f"bundle     {bundle.folder}"
    yield f"made by    {manifest.producer}, format version {manifest.format_version}"
    words = manifest.tokenizer
    template = "with" if words.chat_template else "without"
    yield f"tokenizer  {words.vocabulary} tokens, {template} a chat template"
    yield f"ends at    {', '.join(map(str, manifest.end_ids)) or 'no token'}"
    for model in manifest.models:
        yield ""
        yield from _describe_model(bundle, model)


def _describe_model(bundle: Bundle, model: ModelEntry) -> Iterator[str]:
    cache = model.cache
    width = 2 if cache.dtype == "float16" else 4
    token_bytes = 2 * cache.layers * cache.kv_heads * cache.head_dim * width
    yield f"{model.role} {model.name!r}: {model.source}"
    yield f"  architecture  {model.architecture}, {model.parameters / 1e6:.0f} million parameters"
    block = f" in blocks of {model.block_size}" if model.block_size else ""
    finer = f" ({' and '.join(model.int8_layers)} layers in int8)" if model.int8_layers else ""
    yield f"  weights       {model.precision}{block}{finer}, {model.flavour} graph"
    yield f"  on disk       {bundle.weight_bytes(model) / _MIB:.1f} MiB"
    yield f"  context       {model.context} tokens"
    yield f"  cache         {token_bytes / 1024:.1f} KiB a token, {cache.dtype}"
    steady = "the same" if model.is_steady else "rounded differently"
    yield f"  numerics      a token alone and in a block: {steady}"
    yield f"  licence       {model.licence or 'not stated'}"
    yield from _describe_parity(model)


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
