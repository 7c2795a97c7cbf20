"""The command that measures what copying drafters cost."""

import pytest

from runtime.drafters import SuffixDrafter
from tools import copiers


class Counting(SuffixDrafter):
    """A suffix drafter that notes what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.rewound: list[int] = []

    def propose(self, context, k, *, noise):
        self.asked.append(len(context))
        return super().propose(context, k, noise=noise)

    def rewind(self, *, to):
        self.rewound.append(to)
        super().rewind(to=to)


def test_the_measured_loop_commits_what_equals_the_text() -> None:
    text = [*range(20), *range(10), 99, 98]
    drafter = Counting()
    cost = copiers.measure(drafter, text, 20, k=4, taken_back=0)
    # No match before two known tokens, then 2 and 4 drafted tokens stay, and none of the end.
    assert drafter.asked == [20, 20, 21, 22, 25, 30, 31]
    assert drafter.rewound == [20, 21, 24, 29, 30, 31]
    assert cost.token > 0
    assert cost.longest >= cost.token


def test_what_a_stage_above_drafted_is_taken_back() -> None:
    drafter = Counting()
    copiers.measure(drafter, list(range(10)), 5, k=2, taken_back=3)
    assert drafter.asked[1:5] == [5, 8, 6, 9]
    assert drafter.rewound[:4] == [5, 5, 6, 6]


def test_only_agreement_counts() -> None:
    assert copiers._agreed([1, 2, 3], [1, 2, 9, 9]) == 2
    assert copiers._agreed([1, 2], [1, 2, 3]) == 2
    assert copiers._agreed([], [1]) == 0


def test_texts_are_what_they_are_called() -> None:
    random, repetitive = (make(3000) for make in copiers.TEXTS.values())
    assert len(random) == len(repetitive) == 3000

    def accepted(text):
        drafter, kept = SuffixDrafter(), 0
        for place in range(1500, 1800):
            tokens = drafter.propose(text[:place], 3, noise=copiers._NOISE).tokens
            kept += copiers._agreed(tokens, text[place : place + 3])
        return kept

    assert accepted(random) == 0
    assert accepted(repetitive) > 400


def test_the_command_prints_a_table(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copiers, "_STREAMED_BYTES", 8)
    arguments = ["--history", "50", "--tokens", "30", "--drafters", "none,suffix,lookup"]
    assert copiers.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 2 * 3
    assert {line.split()[0] for line in lines[1:]} == {"none", "suffix", "lookup"}


def test_an_unknown_drafter_is_refused(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        copiers.main(["--drafters", "oracle"])
    assert "suffix" in capsys.readouterr().err
