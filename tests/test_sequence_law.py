"""Whole sequences follow the target's law: real sessions, caches, stages and rollback, many seeds.

The law is computed by plain scoring; the answers come from the engine. The G statistic is compared
with a bound that holds at every sample size (Agrawal, arXiv 1904.02291): for K outcomes and n draws
Pr(n · KL ≥ x) ≤ e⁻ˣ · (e·x / (K − 1))^(K − 1). A deliberately wrong rule must exceed it.
"""

import math
from collections import Counter

import pytest
from tiny_bundle import END, make_bundle

from runtime import Engine
from runtime import acceptance as acceptance_module
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling

LENGTH = 4  # the prompt's own token, a block of two, and the token after it
SETTINGS = {"temperature": 1.0, "top_k": 3, "frequency_penalty": 0.8}
ALPHA = 1e-9
# Every token after the last letter has stood there before: the lookup proposes at once.
PROMPT = "bacbbebceb"


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    make_bundle(folder, seed=5, drafts=2, vocabulary=5, distance=1.2, sharpness=0.8)
    with Engine.open(folder, threads=1) as engine:
        yield engine


@pytest.fixture(scope="module")
def law(engine):
    """Pr of each sequence that ends with the end token or has `LENGTH` tokens."""
    prompt = engine.encode(PROMPT)
    sampler = Sampler(
        Sampling(**SETTINGS),
        vocabulary=5,
        prompt_length=len(prompt),
        end_ids=(END,),
        noise=Noise(0),
    )
    law = {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for tokens, chance in law.items():
            if END in tokens:
                longer[tokens] = chance
                continue
            sequence = [*prompt, *tokens]
            engine.target.begin(sequence, even_widths=False)
            row = sampler.laws(engine.target.score(sequence, 1), sequence)[0]
            for token in range(5):
                if row.probability(token) > 0:
                    longer[*tokens, token] = chance * float(row.probability(token))
        law = longer
    assert sum(law.values()) == pytest.approx(1)
    return law


def divergence(counts, law):
    """Return n · KL(observed ‖ law); half of the G statistic."""
    total = sum(counts.values())
    if any(law.get(outcome, 0) == 0 for outcome in counts):
        return math.inf
    return sum(n * math.log(n / (total * law[outcome])) for outcome, n in counts.items())


def threshold(outcomes):
    """Return x with e⁻ˣ · (e·x / (K − 1))^(K − 1) = ALPHA."""
    low, high = outcomes - 1.0, 1e6
    for _ in range(100):
        x = (low + high) / 2
        tail = -x + (outcomes - 1) * (1 + math.log(x / (outcomes - 1)))
        low, high = (x, high) if tail > math.log(ALPHA) else (low, x)
    return high


def observe(engine, draws, **options):
    options = {"max_tokens": LENGTH, "k": 2, **SETTINGS, **options}
    answers = [engine.complete(PROMPT, seed=seed, **options) for seed in range(draws)]
    assert sum(answer.stats.drafted for answer in answers) > draws
    return Counter(answer.token_ids for answer in answers)


# A lookup's wrong residual is the hardest to see, so it gets the most draws.
SEEN = [(["lookup"], "token", 1000), (["draft"], "block", 600), (["lookup", "draft"], "token", 600)]
CASES = [*SEEN, (["draft"], "token", 600), (["lookup", "draft"], "block", 600)]


@pytest.mark.parametrize(("stages", "rule", "draws"), CASES)
def test_sequences_follow_the_targets_law(engine, law, stages, rule, draws):
    counts = observe(engine, draws, stages=stages, rule=rule)
    assert divergence(counts, law) < threshold(len(law))


@pytest.mark.parametrize(("stages", "rule", "draws"), SEEN)
def test_a_wrong_residual_is_seen(engine, law, stages, rule, draws, monkeypatch):
    monkeypatch.setattr(acceptance_module, "residual", lambda p, _q, *, scale: p)
    counts = observe(engine, draws, stages=stages, rule=rule)
    assert divergence(counts, law) > threshold(len(law))


def test_the_law_is_worth_testing(law):
    assert len(law) > 30
    assert 0.02 < sum(p for tokens, p in law.items() if len(tokens) < LENGTH) < 0.9
    assert max(law.values()) < 0.5
    assert divergence(Counter(law), law) == pytest.approx(0)
    assert 2 * threshold(2) == pytest.approx(51, abs=4)  # χ² with one degree of freedom: 37


@pytest.mark.parametrize("rule", ["block", "token"])
@pytest.mark.parametrize("stages", [["lookup"], ["draft"], ["lookup", "draft1", "draft"]])
def test_no_random_number_serves_twice(engine, stages, rule, monkeypatch):
    """A number that was seen in one round must not decide another round, or another level."""
    drawn = []
    uniform = Noise.uniform

    def watched(noise, position, purpose):
        drawn.append((noise.path, position, purpose))
        return uniform(noise, position, purpose)

    monkeypatch.setattr(Noise, "uniform", watched)
    options = {**SETTINGS, "k": 4, "stages": stages, "rule": rule, "ignore_eos": True}
    engine.complete(PROMPT, seed=0, max_tokens=40, **options)
    assert len(drawn) > 40
    assert len(set(drawn)) == len(drawn)
