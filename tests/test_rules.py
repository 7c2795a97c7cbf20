"""The command that compares the two rules on real rounds."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tiny_bundle import make_bundle

from runtime.acceptance import RULES
from runtime.drafters import Proposal
from runtime.law import Law
from runtime.speculate import Verdict
from tools import rules

P, Q = Law(np.array([1 / 3, 2 / 3])), Law(np.array([2 / 3, 1 / 3]))


@pytest.mark.parametrize(("rule", "expected"), [("token", 10 / 9), ("block", 11 / 9)])
def test_expected_accepted_tokens_average_to_the_published_values(
    rule: str, expected: float
) -> None:
    mean = 0.0
    for tokens in product((0, 1), repeat=2):
        verdict = Verdict(
            level="target",
            start=1,
            drafted=Proposal(list(tokens), [Q, Q]),
            p=[P, P, P],
            accepted=0,
            emitted=[],
            seconds=0.0,
            depth=0,
            width=3,
            verify_seconds=0.0,
        )
        chance = float(np.prod([Q.weights[token] for token in tokens]))
        mean += chance * rules.expected_accepted(RULES[rule], verdict)
    assert mean == pytest.approx(expected)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("rules") / "bundle", vocabulary=6, distance=0.8)


def test_the_command_compares_rounds(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"question_id": 1, "turns": ["abca"]}', encoding="utf-8")
    arguments = ["--rounds", "40", "--k", "3", "--prompts", str(prompts), "--quiet"]
    assert rules.main([str(bundle), *arguments]) == 0
    assert "gain +" in capsys.readouterr().out
