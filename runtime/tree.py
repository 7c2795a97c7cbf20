"""Score a tree of proposals in one pass: every branch sees its own ancestors and no other.

In: a model of the flavour `trees`, a text, and proposals with their parents. Out: the logits after
the text and after each node. Nodes leave no trace: what is kept of them is fed with the next text.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .errors import BundleError
from .model import PREFILL_CHUNK, OnnxModel
from .steps import PortableStep


def score_tree(
    model: OnnxModel, tokens: Sequence[int], nodes: Sequence[int], parents: Sequence[int]
) -> NDArray[np.float32]:
    """Feed what is new of `tokens` and return the logits after them and after every node.

    Args:
        model: of the flavour `trees`.
        tokens: the text, of which the last token is fed anew.
        nodes: the proposals' token ids.
        parents: for each node the index of an earlier one that it follows, or -1 for the text.

    Returns:
        `[1 + len(nodes), vocabulary]`, first the law after the text; it holds until the next call.

    Raises:
        BundleError: the graph takes no mask.
        CapacityError: text and tree do not fit into the context.
    """
    if len(tokens) - model.length > PREFILL_CHUNK:
        model.score(tokens[:-1], 1)
    model.cache.reserve(len(tokens) + len(nodes))
    model.rewind(to=min(model.length, len(tokens) - 1))
    past, text = model.length, len(tokens)
    step = model.steps.of(text - past + len(nodes), 1 + len(nodes))
    if not isinstance(step, PortableStep) or not step.has_mask:
        raise BundleError(
            f"model {model.name} finds out by itself what a token sees: for trees, export with "
            "--flavour trees"
        )
    positions, visible = _place(past, text, parents, model.cache.capacity)
    fed = [*tokens[past:], *nodes]
    logits = step.run_at([fed], np.array([past]), positions[None], visible[None])
    model.cache.tokens.extend(tokens[past:])
    return model.widen(logits)


def _place(
    past: int, text: int, parents: Sequence[int], capacity: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return positions `[S]` and visible columns `[S, capacity]` of the text's rest and tree."""
    lag = text - past
    positions = np.arange(past, text + len(parents))
    visible = np.arange(capacity) <= positions[:, None]
    for node, parent in enumerate(parents):
        row = lag + node
        above = lag + parent if parent >= 0 else lag - 1
        visible[row] = visible[above]
        visible[row, text + node] = True
        positions[row] = positions[above] + 1
    return positions, visible
