"""The bundle's manifest, format version 1: what a bundle folder says about itself.

In: the text of `manifest.json`. Out: a frozen `Manifest`, or a `BundleError` that names the field.
The export toolchain writes what is defined here and imports it; nothing here imports the toolchain.
Standard library only, so that any program can read a bundle's description.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from .errors import BundleError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
FLAVOURS = ("fused", "portable", "trees")
# Of graphs that other exporters made: caches updated in place, or handed back longer by each pass.
ADOPTED_FLAVOURS = ("shared", "growing")
PRECISIONS = ("int4", "int8", "float32", "float16")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the bundle: `path` relative with `/`, `bytes` its size, `sha256` in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """The tokenizer all models of the bundle share.

    `fingerprint` is the content hash by which two models are known to speak the same language;
    `vocabulary` is the highest token id + 1: ids from there on are padding of a model's logits and
    can never be drafted, sampled or fed. `bos_token`/`eos_token` are handed to the chat template.
    `adds_bos` says whether a raw prompt starts with the beginning-of-text token; `is_rebuilt` that
    the rules that cut text were rebuilt from a GGUF file, which does not hold them.
    """

    file: str
    fingerprint: str
    vocabulary: int
    bos_token: str | None = None
    eos_token: str | None = None
    bos_id: int | None = None
    adds_bos: bool = False
    is_rebuilt: bool = False
    chat_template: str | None = None


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """Shape of the key-value cache: every layer holds `[1, kv_heads, capacity, head_dim]`.

    Where layers differ, `shapes` has `(kv_heads, head_dim)` of each, and the two are the largest.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    shapes: tuple[tuple[int, int], ...] = ()

    def shape_of(self, layer: int) -> tuple[int, int]:
        """Return `(kv_heads, head_dim)` of one layer."""
        return self.shapes[layer] if self.shapes else (self.kv_heads, self.head_dim)


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One graph of the bundle.

    `role` is `target` or `draft`; `name` is unique in the bundle and is its sub-folder's name.
    `logits` is the width of the logits (≥ the vocabulary when padded); `embeddings` the number of
    ids the graph can be fed. A draft whose head was trimmed to fewer tokens has `token_ids`, the
    file (`.npy`, one dimension of whole numbers, ascending) that says which token each column of
    its logits stands for; every other token has probability zero. `context` is the largest number
    of tokens its cache may hold. `int8_layers` names the kinds of layers that an int4 graph keeps
    in int8. `parity` holds the figures of the gate that the graph passed before it was published.
    """

    name: str
    role: str
    graph: str
    flavour: str
    precision: str
    architecture: str
    logits: int
    embeddings: int
    context: int
    cache: CacheLayout
    parameters: int
    source: str
    licence: str | None = None
    block_size: int | None = None
    int8_layers: tuple[str, ...] = ()
    token_ids: str | None = None
    parity: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_steady(self) -> bool:
        """Whether a row had the same bits alone and in a block when the export compared them."""
        return not self.parity.get("block_error")


@dataclass(frozen=True, kw_only=True)
class NgramEntry:
    """A table of n-grams: its file, the longest n, how many tokens were counted, and of what."""

    file: str
    order: int
    counted: int
    source: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A whole bundle. `models` starts with the target; drafts follow, nearest to the target first.

    `end_ids` is the union of the end-of-text ids of every source the target's checkpoint has.
    `ngram` is the n-gram table, where one was built.
    """

    producer: str
    tokenizer: Tokenizer
    models: tuple[ModelEntry, ...]
    files: tuple[FileEntry, ...]
    end_ids: tuple[int, ...]
    ngram: NgramEntry | None = None
    format_version: int = FORMAT_VERSION

    @property
    def target(self) -> ModelEntry:
        """The model whose distribution the output follows."""
        return self.models[0]

    @property
    def drafts(self) -> tuple[ModelEntry, ...]:
        """The draft models, nearest to the target first."""
        return self.models[1:]


def dump_manifest(manifest: Manifest) -> str:
    """Return the manifest as JSON text: stable key order, one trailing newline, UTF-8 safe."""
    return json.dumps(asdict(manifest), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def parse_manifest(text: str) -> Manifest:
    """Return the manifest that `text` holds.

    Raises:
        BundleError: not JSON, of another format version, or a field is missing or of a wrong type.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BundleError(
            f"{MANIFEST_NAME} is not valid JSON ({error}): the file is damaged; export it again"
        ) from None
    if not isinstance(raw, dict):
        raise BundleError(f"{MANIFEST_NAME} must hold a JSON object, but holds {_kind(raw)}")
    _check_version(raw.get("format_version"))
    manifest = Manifest(
        producer=_get(raw, "producer", str),
        tokenizer=_parse_tokenizer(_get(raw, "tokenizer", dict)),
        models=tuple(_parse_model(item) for item in _get(raw, "models", list)),
        files=tuple(_parse_file(item) for item in _get(raw, "files", list)),
        end_ids=tuple(_check(item, int, "end_ids") for item in _get(raw, "end_ids", list)),
        ngram=_parse_ngram(_optional(raw, "ngram", dict)),
    )
    _check_roles(manifest)
    _check_widths(manifest)
    return manifest


def _check_version(version: object) -> None:
    if type(version) is int and version == FORMAT_VERSION:
        return
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise BundleError(
            f"the bundle has format version {version}, but this forerun reads versions up to "
            f"{FORMAT_VERSION}: update forerun, or export the bundle again with this version"
        )
    raise BundleError(
        f"{MANIFEST_NAME} must name format_version {FORMAT_VERSION}, but has {version!r}: "
        "the file is damaged or no forerun bundle; export it again"
    )


def _check_widths(manifest: Manifest) -> None:
    vocabulary = manifest.tokenizer.vocabulary
    for model in manifest.models:
        if model.token_ids is not None and (model.role == "target" or model.logits > vocabulary):
            raise BundleError(
                f"{MANIFEST_NAME}: model {model.name} must not have token_ids: only a draft's head "
                f"may be trimmed, to at most the tokenizer's {vocabulary} tokens"
            )
        scored = vocabulary if model.token_ids else model.logits
        if min(scored, model.embeddings) < vocabulary:
            raise BundleError(
                f"{MANIFEST_NAME}: model {model.name} knows {min(scored, model.embeddings)} "
                f"tokens, but the tokenizer has {vocabulary}: the two do not belong together"
            )


def _check_roles(manifest: Manifest) -> None:
    roles = [model.role for model in manifest.models]
    if not roles or roles[0] != "target" or any(role != "draft" for role in roles[1:]):
        raise BundleError(
            f"{MANIFEST_NAME} must list one target and then its drafts, but lists roles {roles}"
        )
    names = [model.name for model in manifest.models]
    if len(set(names)) != len(names):
        raise BundleError(f"{MANIFEST_NAME} lists two models of one name among {names}")
    for token in manifest.end_ids:
        if not 0 <= token < manifest.tokenizer.vocabulary:
            raise BundleError(
                f"{MANIFEST_NAME}: end-of-text id {token} lies outside the vocabulary of "
                f"{manifest.tokenizer.vocabulary} tokens"
            )


def _parse_tokenizer(raw: Mapping[str, Any]) -> Tokenizer:
    where = "tokenizer"
    return Tokenizer(
        file=_get(raw, "file", str, where),
        fingerprint=_get(raw, "fingerprint", str, where),
        vocabulary=_positive(raw, "vocabulary", where),
        bos_token=_optional(raw, "bos_token", str, where),
        eos_token=_optional(raw, "eos_token", str, where),
        bos_id=_optional(raw, "bos_id", int, where),
        adds_bos=_get(raw, "adds_bos", bool, where),
        is_rebuilt=_optional(raw, "is_rebuilt", bool, where) or False,
        chat_template=_optional(raw, "chat_template", str, where),
    )


def _parse_model(raw: object) -> ModelEntry:
    raw = _check(raw, dict, "models[]")
    where = f"model {raw.get('name', '?')}"
    cache = _get(raw, "cache", dict, where)
    return ModelEntry(
        name=_get(raw, "name", str, where),
        role=_one_of(raw, "role", ("target", "draft"), where),
        graph=_get(raw, "graph", str, where),
        flavour=_one_of(raw, "flavour", (*FLAVOURS, *ADOPTED_FLAVOURS), where),
        precision=_one_of(raw, "precision", PRECISIONS, where),
        architecture=_get(raw, "architecture", str, where),
        logits=_positive(raw, "logits", where),
        embeddings=_positive(raw, "embeddings", where),
        context=_positive(raw, "context", where),
        cache=CacheLayout(
            layers=_positive(cache, "layers", where),
            kv_heads=_positive(cache, "kv_heads", where),
            head_dim=_positive(cache, "head_dim", where),
            dtype=_one_of(cache, "dtype", ("float32", "float16"), where),
            shapes=_parse_shapes(cache, where),
        ),
        parameters=_positive(raw, "parameters", where),
        source=_get(raw, "source", str, where),
        licence=_optional(raw, "licence", str, where),
        block_size=_optional(raw, "block_size", int, where),
        int8_layers=tuple(
            _check(kind, str, f"{where}: int8_layers")
            for kind in _optional(raw, "int8_layers", list, where) or ()
        ),
        token_ids=_optional(raw, "token_ids", str, where),
        parity=_get(raw, "parity", dict, where),
    )


def _parse_ngram(raw: Mapping[str, Any] | None) -> NgramEntry | None:
    if raw is None:
        return None
    return NgramEntry(
        file=_get(raw, "file", str, "ngram"),
        order=_positive(raw, "order", "ngram"),
        counted=_positive(raw, "counted", "ngram"),
        source=_get(raw, "source", str, "ngram"),
    )


def _parse_shapes(cache: Mapping[str, Any], where: str) -> tuple[tuple[int, int], ...]:
    shapes = _optional(cache, "shapes", list, where) or ()
    name = f"{where}: shapes"
    for shape in shapes:
        if len(_check(shape, list, name)) != 2 or min(_check(n, int, name) for n in shape) < 1:
            raise BundleError(
                f"{MANIFEST_NAME}: {name} must hold pairs of positive numbers, but holds {shape!r}"
            )
    if shapes and len(shapes) != cache["layers"]:
        raise BundleError(
            f"{MANIFEST_NAME}: {name} must hold {cache['layers']} pairs, one a layer, but holds "
            f"{len(shapes)}"
        )
    return tuple((heads, width) for heads, width in shapes)


def _parse_file(raw: object) -> FileEntry:
    raw = _check(raw, dict, "files[]")
    return FileEntry(
        path=_get(raw, "path", str, "files[]"),
        bytes=_get(raw, "bytes", int, "files[]"),
        sha256=_get(raw, "sha256", str, "files[]"),
    )


def _get(raw: Mapping[str, Any], key: str, kind: type[T], where: str = "") -> T:
    name = f"{where}: {key}" if where else key
    if key not in raw:
        raise BundleError(f"{MANIFEST_NAME} lacks the field {name}; export the bundle again")
    return _check(raw[key], kind, name)


def _optional(raw: Mapping[str, Any], key: str, kind: type[T], where: str = "") -> T | None:
    name = f"{where}: {key}" if where else key
    return None if raw.get(key) is None else _check(raw[key], kind, name)


def _positive(raw: Mapping[str, Any], key: str, where: str) -> int:
    value = _get(raw, key, int, where)
    if value < 1:
        raise BundleError(f"{MANIFEST_NAME}: {where}: {key} must be at least 1, but is {value}")
    return value


def _one_of(raw: Mapping[str, Any], key: str, allowed: tuple[str, ...], where: str) -> str:
    value = _get(raw, key, str, where)
    if value not in allowed:
        raise BundleError(
            f"{MANIFEST_NAME}: {where}: {key} must be one of {', '.join(allowed)}, but is {value!r}"
        )
    return value


def _check(value: object, kind: type[T], name: str) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BundleError(f"{MANIFEST_NAME}: {name} must be {kind.__name__}, but is {_kind(value)}")
    return value


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]
