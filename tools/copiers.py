"""What drafters without a model cost a committed token: `python -m tools.copiers`.

Each is fed a history and then goes round by round through a text that is known beforehand, as the
loop of an answer does it: propose, keep what equals the text, take back the rest; between rounds
a stage above drafts tokens that do not stay. Times are of this thread's CPU, so that a busy
machine counts little. Warm is the loop by itself; cold has memory streamed through the caches
before each round, as a model's pass does it. `none` shows what measuring costs; `archived` is the
suffix drafter with a full store; `chosen` is the suffix drafter under a controller: what it takes
longer than `suffix` is the controller's; `ngram` drafts from a table of the texts.
"""

import argparse
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import thread_time

import numpy as np

from runtime.arguments import Parser
from runtime.candidate import COPIER_PRIOR, Candidate
from runtime.controller import Controller
from runtime.drafters import (
    Archive,
    Drafter,
    LookupDrafter,
    NgramDrafter,
    NoDrafter,
    Proposal,
    SuffixDrafter,
)
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling
from runtime.speculate import Verdict
from runtime.store import MOST_TOKENS
from runtime.survival import Survival

from .counting import count_ngrams

COLD_TOKENS = 300
_STREAMED_BYTES = 64 << 20
VOCABULARY = 50_000
_NOISE = Noise(0)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds a drafter took: to index the history, per committed token, in its longest round."""

    index: float
    token: float
    longest: float


def random_text(length: int) -> list[int]:
    """Return tokens without any structure: hardly two follow each other twice."""
    rng = random.Random(0)
    return [rng.randrange(VOCABULARY) for _ in range(length)]


def repetitive_text(length: int) -> list[int]:
    """Return tokens that are phrases of 5 to 40 tokens, drawn again and again."""
    rng = random.Random(0)
    phrases = [random_text(rng.randint(5, 40)) for _ in range(60)]
    phrases = [[(token + i) % VOCABULARY for token in phrase] for i, phrase in enumerate(phrases)]
    text: list[int] = []
    while len(text) < length:
        text += rng.choice(phrases)
    return text[:length]


TEXTS: dict[str, Callable[[int], list[int]]] = {
    "random": random_text,
    "repetitive": repetitive_text,
}


def archived_suffix() -> SuffixDrafter:
    """Return a suffix drafter over a full store, in which `random_text` is found."""
    sequences = np.array(random_text(MOST_TOKENS)).reshape(-1, 1 << 10)
    return SuffixDrafter(archive=Archive(sequences, capacity=2 * MOST_TOKENS))


def chosen_suffix() -> Controller:
    """Return a suffix drafter under a controller for which a wider pass costs a tenth more."""
    candidate = Candidate(SuffixDrafter(), Survival(COPIER_PRIOR))
    return Controller([candidate], pass_cost=lambda width, _: 0.9 + 0.1 * width, draft_costs={})


def ngrams() -> NgramDrafter:
    """Return a greedy drafter over a table of both kinds of text."""
    texts = [make_text(1 << 16) for make_text in TEXTS.values()]
    sampler = Sampler(
        Sampling(temperature=0),
        vocabulary=VOCABULARY,
        prompt_length=1,
        end_ids=(),
        noise=_NOISE,
    )
    return NgramDrafter(count_ngrams(texts, order=3, vocabulary=VOCABULARY), sampler)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "none": NoDrafter,
    "lookup": LookupDrafter,
    "suffix": SuffixDrafter,
    "archived": archived_suffix,
    "chosen": chosen_suffix,
    "ngram": ngrams,
}


def measure(
    drafter: Drafter,
    text: Sequence[int],
    history: int,
    *,
    k: int,
    taken_back: int,
    between: Callable[[], object] = lambda: None,
) -> Cost:
    """Return what `drafter` costs on `text` after its first `history` tokens.

    Args:
        drafter: a fresh one.
        text: the tokens of history and answer.
        history: how many tokens are fed before the first round, ≥ 1.
        k: the most tokens drafted in a round.
        taken_back: tokens that a stage above drafts in each round, none of which stays.
        between: called before every round, its time not counted.
    """
    began = thread_time()
    drafter.propose(text[:history], k, noise=_NOISE)
    indexed = thread_time() - began
    wrong = [VOCABULARY + i for i in range(taken_back)]
    rounds: list[float] = []
    place = history
    while place < len(text):
        context, longer = list(text[:place]), [*text[:place], *wrong]
        between()
        began = thread_time()
        proposal = drafter.propose(context, k, noise=_NOISE)
        accepted = _agreed(proposal.tokens, text[place : place + k])
        drafter.rewind(to=place + accepted)
        if isinstance(drafter, Controller):
            drafter.watch(_verdict(place, proposal, accepted))
        if wrong:
            drafter.propose(longer, k, noise=_NOISE)
            drafter.rewind(to=place)
        rounds.append(thread_time() - began)
        place += accepted + 1
    return Cost(index=indexed, token=sum(rounds) / (place - history), longest=max(rounds))


def main(argv: list[str] | None = None) -> int:
    """Measure and print a table."""
    args = _make_parser().parse_args(argv)
    streamed = np.ones(_STREAMED_BYTES // 8)
    titles = f"{'index':>12}{'warm':>15}{'longest round':>16}{'cold':>15}"
    print(f"{'drafter':<9}{'text':<11}{'history':>8}{titles}")
    for history in args.history:
        for kind, make_text in TEXTS.items():
            text = make_text(history + args.tokens)
            for name in args.drafters:
                settings = {"k": args.k, "taken_back": args.taken_back}
                warm = measure(DRAFTERS[name](), text, history, **settings)
                short = text[: history + COLD_TOKENS]
                cold = measure(DRAFTERS[name](), short, history, **settings, between=streamed.sum)
                print(
                    f"{name:<9}{kind:<11}{history:>8}{warm.index * 1e3:>9.1f} ms"
                    f"{warm.token * 1e6:>9.1f} µs/t{warm.longest * 1e3:>13.2f} ms"
                    f"{cold.token * 1e6:>9.1f} µs/t",
                    flush=True,
                )
    return 0


def _verdict(start: int, drafted: Proposal, accepted: int) -> Verdict:
    return Verdict(
        level="target",
        start=start,
        drafted=drafted,
        p=[],
        accepted=accepted,
        emitted=[*drafted.tokens[:accepted], 0],
        seconds=0.0,
        depth=start,
        width=len(drafted.tokens) + 1,
        verify_seconds=0.0,
    )


def _agreed(tokens: Sequence[int], text: Sequence[int]) -> int:
    """Return how many of `tokens` equal those of `text` up to the first that does not."""
    pairs = enumerate(zip(tokens, text, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(tokens), len(text)))


def _make_parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m tools.copiers", description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("--drafters", type=_drafters, default=["none", "suffix"], metavar="A,B")
    add("--history", type=_numbers, default=[1000, 8000, 100_000], metavar="N,M", help="tokens")
    add("--tokens", type=int, default=4000, metavar="N", help="that are committed (default 4000)")
    add("--k", type=int, default=3, metavar="N", help="most tokens drafted (default 3)")
    add("--taken-back", type=int, default=2, metavar="N", help="by a stage above (default 2)")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _drafters(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(DRAFTERS):
        raise argparse.ArgumentTypeError(f"known are {', '.join(DRAFTERS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
