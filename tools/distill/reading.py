"""Given text with the target's laws at every place: one pass over it instead of writing it.

In: a graph that holds several sequences, and token sequences. Out: samples.
"""

from collections.abc import Callable, Sequence

import numpy as np

from runtime.batch import BatchModel

from .laws import TopLaws
from .samples import GIVEN, Sample
from .source import Item

_ROWS = 32  # rows of logits at a time and sequence: they are as wide as the vocabulary


def judge_texts(
    model: BatchModel,
    items: Sequence[Item],
    *,
    top: int,
    on_tokens: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """Return each text with the laws of all tokens but its first.

    Args:
        model: holds at least as many sequences as there are items.
        items: texts of two tokens at least; each fits the context.
        top: how many tokens of each law to keep.
        on_tokens: told how many tokens each pass has judged.
    """
    texts = [item.ids for item in items]
    idle = [[0]] * (len(model.lengths) - len(texts))
    laws: list[list[TopLaws]] = [[] for _ in texts]
    model.rewind(to=[0] * len(model.lengths))
    longest = max(map(len, texts)) - 1
    for begin in range(0, longest, _ROWS):
        ends = [min(len(text) - 1, begin + _ROWS) for text in texts]
        rows = [max(0, end - begin) for end in ends]
        fed = [text[: max(1, end)] for text, end in zip(texts, ends, strict=True)]
        logits = model.score([*fed, *idle], [*rows, *[0] * len(idle)])
        for own, found in zip(laws, logits, strict=False):
            if len(found):
                own.append(TopLaws.of(np.ascontiguousarray(found), top))
        on_tokens(sum(rows))
    return [
        Sample(np.array(item.ids, np.int32), 1, TopLaws.join(own), GIVEN, item.category)
        for item, own in zip(items, laws, strict=True)
    ]
