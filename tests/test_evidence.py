"""The statistics of a certificate: quiet on exact output, loud on wrong rules."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import TableModel
from tiny_bundle import make_bundle

from runtime.acceptance import RULES, Rule
from runtime.drafters import NoDrafter, Proposal
from runtime.law import Law
from runtime.noise import Noise
from runtime.sampling import Sampler, Sampling
from runtime.speculate import Level, ModelDrafter, Verdict, speculate
from runtime.stats import LevelStats
from tools import certify, parity
from tools.evidence import Evidence

LAW = Law(np.array([0.5, 0.3, 0.2]))
DRAFT = Law(np.array([0.2, 0.3, 0.5]))


def verdict(emitted: list[int], drafted: list[int], accepted: int) -> Verdict:
    return Verdict(
        level="target",
        start=1,
        drafted=Proposal(drafted, [DRAFT] * len(drafted)),
        p=[LAW] * (len(drafted) + 1),
        accepted=accepted,
        emitted=emitted,
        seconds=0.0,
        depth=0,
        width=len(drafted) + 1,
        verify_seconds=0.0,
    )


def test_scores_of_one_round_by_hand() -> None:
    evidence = Evidence(seed=0)
    evidence.add(verdict([2, 0], [2], 1), request=0, kept=2)
    excess, likelihood, pit = evidence.scores()
    # A = {2}, p(A) = 0.2; only the first token had a draft law.
    assert excess.value == pytest.approx(0.8 / math.sqrt(0.2 * 0.8))
    assert excess.tokens == 1
    logs = np.log(LAW.weights)
    mean = LAW.weights @ logs
    spread = LAW.weights @ (logs - mean) ** 2
    expected = (logs[2] + logs[0] - 2 * mean) / math.sqrt(2 * spread)
    assert likelihood.value == pytest.approx(expected)
    assert (likelihood.tokens, pit.tokens) == (2, 2)
    assert (evidence.drafted, evidence.tested, evidence.accepted) == (1, 1, 1)


def test_tokens_cut_off_are_not_counted() -> None:
    evidence = Evidence(seed=0)
    evidence.add(verdict([2, 2, 0], [2, 2], 2), request=0, kept=1)
    assert [score.tokens for score in evidence.scores()] == [1, 1, 1]
    assert evidence.emitted == 1


def sampled_evidence(rule: Rule, rounds: int) -> Evidence:
    def sampler() -> Sampler:
        return Sampler(
            Sampling(temperature=1.0), vocabulary=5, prompt_length=2, end_ids=[], noise=Noise(0)
        )

    inner = Level(
        name="draft",
        model=TableModel(7, vocabulary=5),
        drafter=NoDrafter(),
        sampler=sampler(),
        rule=RULES["token"],
        k=0,
        stats=LevelStats(),
    )
    evidence = Evidence(seed=3)
    level = Level(
        name="target",
        model=TableModel(1, vocabulary=5),
        drafter=ModelDrafter("draft", inner),
        sampler=sampler(),
        rule=rule,
        k=2,
        stats=LevelStats(),
        watch=lambda seen: evidence.add(seen, request=evidence.rounds, kept=len(seen.emitted)),
    )
    context = [0, 1]
    for i in range(rounds):
        speculate(level, context, 2, noise=Noise(i))
    return evidence


@pytest.mark.parametrize("rule", ["token", "block"])
def test_exact_rules_are_quiet_and_a_wrong_one_is_loud(rule: str) -> None:
    assert all(score.p_value > 1e-4 for score in sampled_evidence(RULES[rule], 3000).scores())
    wrong = sampled_evidence(certify.ResidualIsTarget(), 3000).scores()
    assert wrong[0].p_value < 1e-6


def test_more_tokens_expose_smaller_leaks() -> None:
    few, many = sampled_evidence(RULES["token"], 100), sampled_evidence(RULES["token"], 400)
    ratio = few.exposed_variation(p_value=1e-4) / many.exposed_variation(p_value=1e-4)
    assert ratio == pytest.approx(2, rel=0.1)
    assert Evidence(seed=0).exposed_variation(p_value=1e-4) == 1.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("certify") / "bundle")


@pytest.fixture
def one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    setting = "temperature 0.7"
    monkeypatch.setattr(certify, "SETTINGS", {setting: certify.SETTINGS[setting]})


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    questions = [{"question_id": i, "turns": [text]} for i, text in enumerate(("abca", "gf", "bh"))]
    path.write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
    return path


@pytest.mark.usefixtures("one_setting")
def test_the_certificate_of_a_tiny_bundle_holds(
    bundle: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "certificate.json"
    arguments = ["--tokens", "1600", "--k", "3", "--prompts", str(prompts), "--json", str(out)]
    assert certify.main([str(bundle), *arguments, "--quiet"]) == 0
    assert "everything holds" in capsys.readouterr().out
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["holds"] is True
    assert len(report["sampled"]) == len(certify.SETTINGS)


@pytest.mark.usefixtures("one_setting")
def test_the_certificate_fails_when_the_product_is_wrong(
    bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(RULES, "block", certify.ResidualIsTarget())
    arguments = ["--tokens", "1600", "--k", "3", "--prompts", str(prompts), "--quiet"]
    assert certify.main([str(bundle), *arguments]) == 1
    assert "NOT everything holds" in capsys.readouterr().out


def test_parity_of_a_tiny_bundle_and_a_difference_that_is_no_tie(
    bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    arguments = [str(bundle), "--prompts", str(prompts), "--quiet", "--max-tokens", "20"]
    assert parity.main(arguments) == 0
    assert "3 of 3 answers equal" in capsys.readouterr().out

    class Stubborn(type(RULES["match"])):  # type: ignore[misc]
        def last(self, p, _q, tokens, accepted, /):  # type: ignore[no-untyped-def]
            law = p[accepted]
            return Law(law.weights, (law.ids + 1) % 8) if tokens else law

    monkeypatch.setitem(RULES, "match", Stubborn())
    assert parity.main(arguments) == 1
    assert "NOT a tie" in capsys.readouterr().out


def test_ties_are_told_from_faults() -> None:
    difference = parity.Difference(
        prompt=0, position=3, plain_token=1, speculative_token=2, margin=1e-6
    )
    assert difference.is_tie
    assert not replace(difference, margin=0.1).is_tie


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--tokens", "0"], "--tokens"),
        (["--parity-prompts", "0"], "--parity-prompts"),
        (["--json", "/nowhere/at/all.json"], "the folder does not exist"),
    ],
)
def test_the_certificate_refuses_odd_arguments_before_it_runs(
    bundle: Path, arguments: list[str], named: str, capsys: pytest.CaptureFixture
) -> None:
    assert certify.main([str(bundle), *arguments, "--quiet"]) == 2
    assert named in capsys.readouterr().err
