"""The law of whole sequences through sessions, caches, rollback and stages, without statistics.

Every outcome of every draw is followed with its probability, over real graphs; the sum must be the
target's own law up to the graphs' rounding.
"""

import math
from collections import defaultdict
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from line_costs import line_costs
from oracle import Oracle, OracleNoise, enumerate_runs
from stacks import ResidualIsTarget
from tiny_bundle import make_bundle

import runtime.speculate as speculate_module
from runtime.drafters import Archive
from runtime.drafters import ngram as ngram_module
from runtime.engine import Engine
from runtime.noise import Noise
from runtime.request import make_request
from runtime.speculate import Level, speculate
from runtime.stack import make_stack
from tools.counting import count_ngrams

WANTED = 3
PROMPT = "abab"
ARCHIVE = Archive([[1, 0, 1, 2, 0, 1, 2, 3], [1, 0, 1, 3, 1, 3, 2]], capacity=99)
NGRAMS = count_ngrams([[0, 1, 0, 1, 2, 0, 1, 3, 1, 2, 1, 0]], order=3, vocabulary=4)
CASES: dict[str, Any] = {
    "draft, block": {"stages": ["draft"], "k": 2},
    "draft, token": {"stages": ["draft"], "k": 2, "rule": "token"},
    "suffix": {"stages": ["suffix"], "k": 2},
    "suffix with a store": {"stages": ["suffix"], "k": 2, "archive": ARCHIVE},
    "n-grams": {"stages": ["ngram"], "k": 2, "ngrams": NGRAMS},
    "n-grams chosen by cost": {"stages": ["suffix|ngram"], "ngrams": NGRAMS, "top_k": 3},
    "n-grams under draft": {"stages": ["ngram:1", "draft"], "k": 2, "ngrams": NGRAMS},
    "draft1 under draft": {"stages": ["draft1", "draft"], "k": 2},
    "suffix under draft": {"stages": ["suffix", "draft"], "k": 2},
    "suffix beside draft": {"stages": ["lookup:1", "lookup|draft"], "k": 2},
    "chosen by cost": {"stages": ["suffix|draft"]},
    "chosen by cost at both levels": {"stages": ["lookup", "lookup|draft"], "rule": "token"},
    "top-k and a penalty": {"stages": ["draft"], "k": 2, "top_k": 3, "repetition_penalty": 1.5},
    "top-p and a bias": {"stages": ["draft"], "k": 2, "top_p": 0.8, "logit_bias": {1: 1.0}},
}

# A draft that knows two of the four tokens.
KEPT = (1, 3)
TRIMMED_CASES: dict[str, Any] = {
    "block": {"stages": ["draft"], "k": 2},
    "token": {"stages": ["draft"], "k": 2, "rule": "token"},
    "draft1 under draft": {"stages": ["draft1", "draft"], "k": 2},
    "draft under draft1": {"stages": ["draft", "draft1"], "k": 2},
    "suffix under draft": {"stages": ["suffix", "draft"], "k": 2},
    "top-k beyond what it knows": {"stages": ["draft"], "k": 2, "top_k": 3},
    "top-p, min-p": {"stages": ["draft"], "k": 2, "top_p": 0.8, "min_p": 0.1},
    "penalties": {"stages": ["draft"], "k": 2, "repetition_penalty": 0.5, "presence_penalty": 1.0},
    "a bias on what it lacks": {"stages": ["draft"], "k": 2, "logit_bias": {0: 3.0, 2: -math.inf}},
    "end tokens held back": {"stages": ["draft"], "k": 2, "min_tokens": 2, "end_ids": [1]},
    "what it knows is held back": {"stages": ["draft"], "k": 2, "min_tokens": 2, "end_ids": KEPT},
    "chosen by cost, what it knows is banned": {
        "stages": ["suffix|draft"],
        "logit_bias": dict.fromkeys(KEPT, -math.inf),
    },
    "chosen by cost": {"stages": ["suffix|draft"]},
    "what it knows is banned": {
        "stages": ["draft"],
        "k": 2,
        "logit_bias": dict.fromkeys(KEPT, -math.inf),
    },
}


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("enumerate") / "trimmed"
    bundle = make_bundle(folder, vocabulary=4, drafts=2, distance=0.8, end_ids=(), kept=KEPT)
    with Engine.open(bundle) as opened:
        yield opened


@pytest.fixture(scope="module", params=["fused", "portable"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("enumerate") / "bundle"
    with Engine.open(_small_bundle(folder, request.param)) as opened:
        yield opened


def _small_bundle(folder: Path, flavour: str) -> Path:
    return make_bundle(folder, vocabulary=4, drafts=2, distance=0.8, end_ids=(), flavour=flavour)


@pytest.fixture(autouse=True)
def draws_are_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (speculate_module, ngram_module):
        monkeypatch.setattr(module, "draw", lambda law, uniform: uniform.oracle.draw(law, uniform))


def make_level(engine: Engine, options: Any) -> Level:
    options = {"temperature": 1.0} | options
    parts = {name: options.pop(name, None) for name in ("archive", "ngrams")}
    end_ids = options.pop("end_ids", [])
    return make_stack(
        engine.target, engine.drafts, make_request(options), prompt=engine.encode(PROMPT),
        end_ids=end_ids, noise=Noise(0), **parts,
        costs=line_costs(engine.drafts) if "k" not in options else None,
    ).target  # fmt: skip


def sequence_law(engine: Engine, options: Any, wrap: Any = None) -> dict[tuple[int, ...], float]:
    prompt = engine.encode(PROMPT)
    law: dict[tuple[int, ...], float] = defaultdict(float)

    def run(oracle: Oracle) -> tuple[int, ...]:
        level = make_level(engine, options)
        level = wrap(level) if wrap else level
        tokens: list[int] = []
        while len(tokens) < WANTED:
            k = min(level.k, WANTED - len(tokens) - 1)
            round_ = speculate(level, [*prompt, *tokens], k, noise=OracleNoise(oracle))
            tokens += round_.tokens
        return tuple(tokens)

    for probability, tokens in enumerate_runs(run):
        law[tokens] += float(probability)
    return law


def target_law(engine: Engine, options: Any) -> dict[tuple[int, ...], float]:
    level = make_level(engine, options | {"k": 0})
    prompt = engine.encode(PROMPT)
    law: dict[tuple[int, ...], float] = {}
    for tokens in product(range(engine.target.vocabulary), repeat=WANTED):
        probability = 1.0
        for i, token in enumerate(tokens):
            prefix = [*prompt, *tokens[:i]]
            engine.target.begin(prefix, even_widths=False)
            row = engine.target.score(prefix, 1)
            probability *= level.sampler.laws(row, prefix)[0].probability(token)
        law[tokens] = probability
    return law


def distance(a: dict[tuple[int, ...], float], b: dict[tuple[int, ...], float]) -> float:
    return sum(abs(a.get(t, 0.0) - b.get(t, 0.0)) for t in {*a, *b}) / 2


@pytest.mark.parametrize("name", CASES)
def test_the_law_of_sequences_is_the_targets(engine: Engine, name: str) -> None:
    law = sequence_law(engine, CASES[name])
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert distance(law, target_law(engine, CASES[name])) < 1e-5


@pytest.mark.parametrize("name", TRIMMED_CASES)
def test_a_draft_that_knows_few_tokens_leaves_the_law_alone(trimmed: Engine, name: str) -> None:
    law = sequence_law(trimmed, TRIMMED_CASES[name])
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    assert distance(law, target_law(trimmed, TRIMMED_CASES[name])) < 1e-5


def test_a_wrong_rule_is_seen(engine: Engine) -> None:
    options = CASES["draft, token"]
    law = sequence_law(engine, options, lambda level: replace(level, rule=ResidualIsTarget()))
    assert distance(law, target_law(engine, options)) > 0.01
