"""What every drafter must do, whichever it is; and what the lookup proposes."""

import numpy as np
import pytest
from fakes import TableModel
from hypothesis import given
from hypothesis import strategies as st

from runtime.acceptance import RULES
from runtime.drafters import FirstOf, LookupDrafter, NgramDrafter, NoDrafter, SuffixDrafter
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling
from runtime.speculate import Level, ModelDrafter, speculate
from runtime.stats import LevelStats
from tools.counting import count_ngrams

VOCABULARY = 5


def make_level(model, drafter, *, rule, k, settings=None):
    sampler = Sampler(
        settings or Sampling(),
        vocabulary=model.vocabulary,
        prompt_length=1,
        end_ids=(),
        noise=Noise(0),
    )
    return Level(
        name="level",
        model=model,
        drafter=drafter,
        sampler=sampler,
        rule=RULES[rule],
        k=k,
        stats=LevelStats(),
    )


def make_draft(*, seed=1, context=64, below=None, vocabulary=VOCABULARY, settings=None):
    model = TableModel(seed, vocabulary=vocabulary, context=context)
    below = below or NoDrafter()
    return ModelDrafter(
        f"draft{seed}", make_level(model, below, rule="token", k=2, settings=settings)
    )


def make_ngram(*, settings=None):
    sequences = np.random.default_rng(0).integers(0, VOCABULARY - 1, [4, 12]).tolist()
    sampler = Sampler(
        settings or Sampling(),
        vocabulary=VOCABULARY,
        prompt_length=1,
        end_ids=(),
        noise=Noise(0),
    )
    return NgramDrafter(count_ngrams(sequences, order=3, vocabulary=VOCABULARY), sampler)


DRAFTERS = {
    "none": NoDrafter,
    "lookup": LookupDrafter,
    "short lookup": lambda: LookupDrafter(longest=1, shortest=1),
    "suffix": SuffixDrafter,
    "eager suffix": lambda: SuffixDrafter(shortest=1),
    "n-grams": make_ngram,
    "greedy n-grams": lambda: make_ngram(settings=Sampling(temperature=0)),
    "model": make_draft,
    "model with a short context": lambda: make_draft(context=6),
    "model over lookup": lambda: make_draft(below=LookupDrafter(longest=2, shortest=1)),
    "model over suffix": lambda: make_draft(below=SuffixDrafter(shortest=1)),
    "model over n-grams": lambda: make_draft(below=make_ngram()),
    "suffix or n-grams": lambda: FirstOf([SuffixDrafter(), make_ngram()]),
    "two models": lambda: make_draft(below=make_draft(seed=2)),
    "model over a model with a short context": lambda: make_draft(below=make_draft(context=6)),
    "lookup or a model": lambda: FirstOf([LookupDrafter(longest=2, shortest=2), make_draft()]),
    "model over lookup or a model": lambda: make_draft(
        below=FirstOf([LookupDrafter(longest=1, shortest=1), make_draft(seed=2)])
    ),
    "three models over lookup": lambda: make_draft(
        below=make_draft(seed=2, below=make_draft(seed=3, below=LookupDrafter()))
    ),
}
every_drafter = pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
CONTEXTS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=9)


def contents(proposal):
    laws = [
        (law.weights.tolist(), law.ids is not None and law.ids.tolist()) for law in proposal.laws
    ]
    return proposal.tokens, laws


@every_drafter
@given(context=CONTEXTS, k=st.integers(1, 6), seed=st.integers(0, 99))
def test_a_proposal_has_at_most_k_possible_tokens_with_their_laws(make, context, k, seed):
    drafter = make()
    before = list(context)
    proposal = drafter.propose(context, k, noise=Noise(seed).inside(len(context)))
    assert context == before
    assert len(proposal.laws) == len(proposal.tokens) <= k
    assert proposal.drafter in [*drafter.name.split("|"), "none"]
    assert len(proposal.signals) in (0, len(proposal.tokens))
    for token, law in zip(proposal.tokens, proposal.laws, strict=True):
        assert type(token) is int
        assert 0 <= token < VOCABULARY
        assert law.probability(token) > 0
        assert law.weights.sum() == pytest.approx(1)


@every_drafter
@given(data=st.data(), seed=st.integers(0, 99))
def test_after_any_rejection_it_proposes_what_a_new_one_would(make, data, seed):
    """The contract of `rewind`: nothing is left of tokens that did not stay."""
    drafter, context = make(), data.draw(CONTEXTS)
    for _ in range(4):
        k = data.draw(st.integers(1, 5))
        noise = Noise(seed).inside(len(context))
        proposal = drafter.propose(context, k, noise=noise)
        assert contents(proposal) == contents(make().propose(context, k, noise=noise))
        accepted = data.draw(st.integers(0, len(proposal.tokens)))
        drafter.rewind(to=len(context) + accepted)
        last = data.draw(st.integers(0, VOCABULARY - 1))
        context = [*context, *proposal.tokens[:accepted], last]
        if data.draw(st.booleans()):  # a round of the level above without this drafter
            context = [*context, *data.draw(CONTEXTS)]


@every_drafter
def test_it_may_be_rewound_to_the_start_and_before_anything_was_proposed(make):
    drafter, noise = make(), Noise(3)
    drafter.rewind(to=0)
    first = drafter.propose([1, 2, 1, 2, 1], 3, noise=noise)
    drafter.rewind(to=0)
    other = drafter.propose([3], 3, noise=noise)
    assert contents(other) == contents(make().propose([3], 3, noise=noise))
    drafter.rewind(to=0)
    assert contents(drafter.propose([1, 2, 1, 2, 1], 3, noise=noise)) == contents(first)


@every_drafter
@pytest.mark.parametrize("rule", ["token", "block"])
@given(seed=st.integers(0, 50))
def test_rounds_over_it_fill_the_targets_context_to_the_last_place(make, rule, seed):
    # The table models complain when a caller overfeeds them or leaves a stale token.
    target = TableModel(seed, vocabulary=VOCABULARY, context=16)
    level = make_level(target, make(), rule=rule, k=4)
    context = [seed % VOCABULARY]
    while len(context) < target.context:
        k = min(level.k, target.context - len(context) - 1)
        context += speculate(level, context, k, noise=Noise(seed)).tokens
    assert len(context) == target.context
    stats = level.stats
    assert 0 <= stats.accepted <= stats.tested <= stats.drafted
    assert len(context) - 1 == stats.passes + stats.accepted


@pytest.mark.parametrize("length", range(1, 9))
def test_a_model_drafts_up_to_the_end_of_its_own_context(length):
    drafter = make_draft(context=6)
    tokens = drafter.propose([0] * length, 4, noise=Noise(0)).tokens
    assert len(tokens) == max(0, min(4, 6 - length))


@pytest.mark.parametrize("below", [None, LookupDrafter(longest=2, shortest=1), make_draft(seed=2)])
@given(context=CONTEXTS, k=st.integers(1, 6))
def test_a_model_always_drafts_k_tokens(below, context, k):
    # A number that depended on the drafted tokens would bias the output.
    drafter = make_draft(below=below)
    assert len(drafter.propose(context, k, noise=Noise(1)).tokens) == k
    drafter.rewind(to=0)


@given(context=CONTEXTS, k=st.integers(1, 5), seed=st.integers(0, 99))
def test_a_stack_of_greedy_levels_drafts_the_models_own_choices(context, k, seed):
    greedy = Sampling(temperature=0)
    model = TableModel(7, vocabulary=VOCABULARY)
    level = make_level(model, make_draft(settings=greedy), rule="match", k=3, settings=greedy)
    tokens = ModelDrafter("stage", level).propose(context, k, noise=Noise(seed)).tokens
    for i, token in enumerate(tokens):
        law = model.law([*context, *tokens[:i]])
        assert token == law.index(max(law))


def test_a_drafted_token_carries_the_very_law_it_was_drawn_from():
    drafter = make_draft(settings=Sampling(temperature=0.6, top_k=3))
    model = TableModel(1, vocabulary=VOCABULARY)
    proposal = drafter.propose([1, 2], 3, noise=Noise(5))
    for i, law in enumerate(proposal.laws):
        shares = np.array([float(p) for p in model.law([1, 2, *proposal.tokens[:i]])])
        shares = np.where(np.argsort(np.argsort(-shares, kind="stable")) < 3, shares, 0)
        expected = shares ** (1 / 0.6) / (shares ** (1 / 0.6)).sum()
        assert [law.probability(x) for x in range(VOCABULARY)] == pytest.approx(expected, rel=1e-5)


# --- lookup ---------------------------------------------------------------------------------------


def reference_lookup(context, k, *, longest, shortest):
    """The last earlier place of the longest ending, copied one by one past the present."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(context) - size - 1, -1, -1):
            if size <= len(context) and context[start : start + size] == context[-size:]:
                copied = list(context)
                for i in range(k):
                    copied.append(copied[start + size + i])
                return copied[len(context) :]
    return []


@given(
    context=st.lists(st.integers(0, 2), min_size=1, max_size=40),
    k=st.integers(1, 9),
    longest=st.integers(1, 5),
    shortest=st.integers(1, 3),
)
def test_lookup_is_the_slow_search(context, k, longest, shortest):
    lookup = LookupDrafter(longest=longest, shortest=shortest)
    expected = reference_lookup(context, k, longest=longest, shortest=shortest)
    assert lookup.propose(context, k, noise=Noise(0)).tokens == expected


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ([1], []),
        ([1, 1], []),
        ([1, 1, 1], [1, 1, 1, 1, 1]),
        ([1, 2, 3, 9, 1, 2], [3, 9, 1, 2, 3]),  # runs into the present and repeats itself
        ([5, 1, 2, 7, 6, 1, 2, 8, 1, 2], [8, 1, 2, 8, 1]),  # the most recent of two
        ([5, 1, 2, 7, 6, 1, 2, 8, 5, 1, 2], [7, 6, 1, 2, 8]),  # the longer before the recent
        ([1, 2, 3, 4], []),
    ],
)
def test_lookup_copies_what_followed(context, expected):
    assert LookupDrafter().propose(context, 5, noise=Noise(0)).tokens == expected


def test_lookup_proposes_point_masses():
    proposal = LookupDrafter().propose([1, 2, 3, 1, 2], 2, noise=Noise(0))
    assert [(law.token_at(0), law.weights.tolist()) for law in proposal.laws] == [
        (3, [1]),
        (1, [1]),
    ]


def test_lookup_remembers_a_long_sequence_fed_piece_by_piece():
    sequence = np.random.default_rng(0).integers(0, 9, 3000).tolist()
    lookup, length = LookupDrafter(), 1
    while length < len(sequence):
        context = sequence[:length]
        expected = reference_lookup(context[-300:], 3, longest=4, shortest=2)
        tokens = lookup.propose(context, 3, noise=Noise(0)).tokens
        assert not expected or tokens == expected or len(context) > 300
        lookup.rewind(to=length)
        length += 1 + length % 250
    long = lookup.propose(sequence, 3, noise=Noise(0)).tokens
    assert long == LookupDrafter().propose(sequence, 3, noise=Noise(0)).tokens
