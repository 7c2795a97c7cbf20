"""What happened in a generation, counted once and named once.

Conventions: a token is *tested* if it was accepted or was the first rejected one; acceptance rate =
accepted / tested; mean accepted length = emitted tokens / target passes, the recovered or bonus
token included (plain decoding is 1.00). A rate is `None` where nothing was counted. Prefill is
never decoding: the decode rate counts the tokens and seconds after the first token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass
class Counts:
    """Tokens of one drafter: how many were drafted, and per place in the proposal what stayed.

    `tested[i]` and `accepted[i]` count the i-th drafted tokens of the rounds.
    """

    drafted: int = 0
    tested: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def add(self, *, drafted: int, accepted: int) -> None:
        """Count one proposal."""
        self.drafted += drafted
        while len(self.tested) < drafted:
            self.tested.append(0)
            self.accepted.append(0)
        for place in range(min(accepted + 1, drafted)):
            self.tested[place] += 1
            self.accepted[place] += place < accepted


@dataclass
class LevelStats:
    """Running counters of one level: rounds (= passes of its model), tokens and seconds.

    `seconds` of drafting include all levels below.
    """

    passes: int = 0
    drafters: dict[str, Counts] = field(default_factory=dict)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    sample_seconds: float = 0.0
    _last: tuple[str, int] = ("", 0)  # the last round's drafter, and how much of it stayed

    def observe(
        self,
        *,
        drafter: str,
        drafted: int,
        accepted: int,
        draft_seconds: float,
        verify_seconds: float,
        sample_seconds: float,
    ) -> None:
        """Count one round."""
        self.passes += 1
        self.draft_seconds += draft_seconds
        self.verify_seconds += verify_seconds
        self.sample_seconds += sample_seconds
        self._last = (drafter, accepted)
        if drafted:
            if drafter not in self.drafters:
                self.drafters[drafter] = Counts()
            self.drafters[drafter].add(drafted=drafted, accepted=accepted)

    def retract(self, *, accepted: int, rejected: int) -> None:
        """Uncount what of the last round a stop or a budget cut off: its tokens never were.

        Such a round ends on an accepted token, so it emits one token less than passes + accepted.
        """
        drafter, stayed = self._last
        counts = self.drafters[drafter]
        for place in range(stayed - accepted, stayed):
            counts.accepted[place] -= 1
        for place in range(stayed - accepted, stayed + rejected):
            counts.tested[place] -= 1

    @property
    def drafted(self) -> int:
        """Tokens that were drafted."""
        return sum(counts.drafted for counts in self.drafters.values())

    @property
    def tested(self) -> int:
        """Tokens that were tested."""
        return sum(sum(counts.tested) for counts in self.drafters.values())

    @property
    def accepted(self) -> int:
        """Tokens that were accepted."""
        return sum(sum(counts.accepted) for counts in self.drafters.values())


@dataclass(frozen=True, kw_only=True)
class StageSeconds:
    """Where the time of a generation went, in seconds."""

    draft: float
    verify: float
    sample: float
    other: float


@dataclass(frozen=True, kw_only=True)
class DrafterStats:
    """Figures of one drafter of a level; `tested[i]` and `accepted[i]` are of the i-th place."""

    name: str
    drafted: int
    tested: tuple[int, ...]
    accepted: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class LevelFigures:
    """Figures of one level; `seconds.draft` includes all levels below, `seconds.other` is 0."""

    name: str
    passes: int
    drafters: tuple[DrafterStats, ...]
    seconds: StageSeconds


@dataclass(frozen=True)
class ChosenRounds:
    """How many rounds drafted `tokens` tokens by `drafter`; `none` is a plain step."""

    drafter: str
    tokens: int
    rounds: int


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a controller chose, and how well it foresaw what came.

    Attributes:
        rounds: how often each drafter and number of tokens was chosen, most frequent first.
        expected_tokens: what the rounds were expected to emit, and
        emitted_tokens: what they emitted.
        expected_seconds: what they were expected to take by the cost table, and
        measured_seconds: what they took.
        plain_seconds: what the emitted tokens would have taken without speculation, by the table.
    """

    rounds: tuple[ChosenRounds, ...]
    expected_tokens: float
    emitted_tokens: int
    expected_seconds: float
    measured_seconds: float
    plain_seconds: float


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Figures of one generation so far.

    `drafted`, `tested` and `accepted` are those of the target's level; `levels` has every level,
    the target's first; `choices` is what the controller of the target's level chose, if one did.
    `time_to_first_token_s` counts from the call to the first token's being
    decided; `decode_tokens_per_s` is `None` until two tokens are out.
    """

    target_passes: int
    drafted: int
    tested: int
    accepted: int
    mean_accepted_length: float | None
    acceptance_rate: float | None
    time_to_first_token_s: float | None
    decode_tokens_per_s: float | None
    stage_seconds: StageSeconds
    levels: tuple[LevelFigures, ...] = ()
    choices: Choices | None = None


@dataclass
class Meter:
    """Turns the levels' counters and the clock into `Stats`.

    `levels` are named counters, the target's first. `first_tokens` are the tokens that came with
    the first round: their time is prefill's.
    """

    levels: Sequence[tuple[str, LevelStats]]
    started: float
    choices: Callable[[], Choices | None] = lambda: None
    emitted: int = 0
    first_at: float | None = None
    first_tokens: int = 0
    last_at: float | None = None

    def count(self, tokens: int, *, now: float) -> None:
        """Count `tokens` emitted at the time `now`."""
        if tokens and self.first_at is None:
            self.first_at, self.first_tokens = now, tokens
        self.emitted += tokens
        self.last_at = now

    def stats(self) -> Stats:
        """Return the figures so far."""
        _, target = self.levels[0]
        accepted, tested = target.accepted, target.tested
        busy = target.draft_seconds + target.verify_seconds + target.sample_seconds
        whole = (self.last_at or self.started) - self.started
        return Stats(
            target_passes=target.passes,
            drafted=target.drafted,
            tested=tested,
            accepted=accepted,
            mean_accepted_length=_rate(self.emitted, target.passes),
            acceptance_rate=_rate(accepted, tested),
            time_to_first_token_s=None if self.first_at is None else self.first_at - self.started,
            decode_tokens_per_s=self._decode_rate(),
            stage_seconds=_seconds(target, other=max(0.0, whole - busy)),
            levels=tuple(_figures(name, level) for name, level in self.levels),
            choices=self.choices(),
        )

    def _decode_rate(self) -> float | None:
        if self.first_at is None or self.last_at is None:
            return None
        return _rate(self.emitted - self.first_tokens, self.last_at - self.first_at)


def _figures(name: str, level: LevelStats) -> LevelFigures:
    return LevelFigures(
        name=name,
        passes=level.passes,
        drafters=tuple(
            DrafterStats(
                name=drafter,
                drafted=counts.drafted,
                tested=tuple(counts.tested),
                accepted=tuple(counts.accepted),
            )
            for drafter, counts in level.drafters.items()
        ),
        seconds=_seconds(level, other=0.0),
    )


def _seconds(level: LevelStats, *, other: float) -> StageSeconds:
    return StageSeconds(
        draft=level.draft_seconds,
        verify=level.verify_seconds,
        sample=level.sample_seconds,
        other=other,
    )


def _rate(part: float, whole: float) -> float | None:
    return part / whole if whole else None
