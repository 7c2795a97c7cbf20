"""The target's own answers to many prompts at once, with its laws.

In: a graph that holds several sequences, and prompts. Out: samples. A sequence whose answer has
ended goes back behind its prompt, which its cache still holds, and writes another one: every pass
is full, and a prompt is read once.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from runtime.batch import BatchModel

from .laws import TopLaws, draw_tokens
from .samples import Sample
from .source import Item

TEMPERATURES = (0.0, 0.7, 1.0)


@dataclass
class _Slot:
    """One sequence of the batch."""

    prompt: Item
    turn: int  # how many answers were begun, which chooses the temperature
    tokens: list[int] = field(default_factory=list)
    laws: list[TopLaws] = field(default_factory=list)

    @property
    def temperature(self) -> float:
        return TEMPERATURES[self.turn % len(TEMPERATURES)]

    def as_sample(self) -> Sample:
        tokens = np.array([*self.prompt.ids, *self.tokens], np.int32)
        laws = TopLaws.join(self.laws)
        return Sample(tokens, len(self.prompt.ids), laws, self.temperature, self.prompt.category)


def write_answers(
    model: BatchModel,
    prompts: Sequence[Item],
    *,
    steps: int,
    answer_tokens: int,
    end_ids: Collection[int],
    top: int,
    seed: Sequence[int],
    on_tokens: Callable[[int], None] = lambda _: None,
) -> list[Sample]:
    """Let the target write `steps` tokens behind each prompt, in answers of at most so many.

    The answers to one prompt are drawn at the temperatures of `TEMPERATURES` in turn, prompts
    begin with different ones.

    Args:
        model: holds as many sequences as there are prompts.
        prompts: what to answer; each fits the context with `answer_tokens` more.
        steps: passes behind the prompts.
        answer_tokens: the longest answer.
        end_ids: tokens that end an answer.
        top: how many tokens of each law to keep.
        seed: of the draws.
        on_tokens: told how many tokens each pass has written.
    """
    random = np.random.default_rng(seed)
    slots = [_Slot(prompt, place) for place, prompt in enumerate(prompts)]
    done: list[Sample] = []
    model.rewind(to=[0] * len(slots))
    for _ in range(steps):
        rows = model.score([[*slot.prompt.ids, *slot.tokens] for slot in slots], [1] * len(slots))
        logits = np.concatenate(rows)
        laws = TopLaws.of(logits, top)
        temperatures = np.array([slot.temperature for slot in slots])
        drawn = draw_tokens(logits, laws, temperatures, random.random(len(slots)))
        for place, (slot, token) in enumerate(zip(slots, drawn.tolist(), strict=True)):
            slot.tokens.append(token)
            slot.laws.append(TopLaws(laws.ids[place, None], laws.log_probs[place, None]))
            if token in end_ids or len(slot.tokens) == answer_tokens:
                done.append(slot.as_sample())
                slots[place] = _Slot(slot.prompt, slot.turn + 1)
        keep = [len(slot.prompt.ids) - 1 if not slot.tokens else None for slot in slots]
        model.rewind(to=[n if k is None else k for n, k in zip(model.lengths, keep, strict=True)])
        on_tokens(len(slots))
    return done + [slot.as_sample() for slot in slots if slot.tokens]
