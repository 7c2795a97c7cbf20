"""What a bundle's models need in memory, and which of them fit.

In: a bundle and a number of bytes. Out: the drafts to load. A model counts its weights and a cache
of `CACHED_TOKENS` tokens; scratch buffers and the program itself come on top.
"""

import logging

from .bundle import Bundle
from .errors import RequestError
from .manifest import ModelEntry

CACHED_TOKENS = 1024
_MIB = 1 << 20
_log = logging.getLogger(__name__)


def memory_bytes(bundle: Bundle, model: ModelEntry) -> int:
    """Return the bytes of a model's weights and of a cache of `CACHED_TOKENS` tokens."""
    tokens = min(CACHED_TOKENS, model.context)
    return bundle.weight_bytes(model) + tokens * token_bytes(model)


def token_bytes(model: ModelEntry) -> int:
    """Return the bytes that one token takes in a model's cache."""
    cache = model.cache
    width = 2 if cache.dtype == "float16" else 4
    shapes = map(cache.shape_of, range(cache.layers))
    return 2 * sum(heads * size for heads, size in shapes) * width


def choose_drafts(bundle: Bundle, max_memory: int | None) -> list[ModelEntry]:
    """Return the drafts to load, nearest to the target first, until the next does not fit.

    Raises:
        RequestError: `max_memory` does not even hold the target.
    """
    drafts = list(bundle.manifest.drafts)
    if max_memory is None:
        return drafts
    left = max_memory - memory_bytes(bundle, bundle.manifest.target)
    if left < 0:
        raise RequestError(
            f"max_memory is {max_memory / _MIB:.0f} MiB, but the target alone needs "
            f"{(max_memory - left) / _MIB:.0f} MiB: allow more, or export a smaller precision"
        )
    chosen = []
    for draft in drafts:
        needed = memory_bytes(bundle, draft)
        if needed <= left:
            chosen.append(draft)
            left -= needed
        else:
            _log.warning(
                "draft %r needs %.0f MiB and is not loaded: %.0f MiB are left of max_memory",
                draft.name,
                needed / _MIB,
                left / _MIB,
            )
    return chosen
