"""What happened in a generation, counted once and named once.

Conventions: a token is *tested* if it was accepted or was the first rejected one; acceptance rate =
accepted / tested; mean accepted length = emitted tokens / target passes, the recovered or bonus
token included (plain decoding is 1.00). A rate is `None` where nothing was counted. Prefill is
never decoding: the decode rate counts the tokens and seconds after the first token.
"""

from dataclasses import dataclass


@dataclass
class LevelStats:
    """Running counters of one level: rounds (= passes of its model), tokens and seconds."""

    passes: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    sample_seconds: float = 0.0

    def observe(
        self,
        *,
        drafted: int,
        accepted: int,
        draft_seconds: float,
        verify_seconds: float,
        sample_seconds: float,
    ) -> None:
        """Count one round."""
        self.passes += 1
        self.drafted += drafted
        self.tested += min(accepted + 1, drafted)
        self.accepted += accepted
        self.draft_seconds += draft_seconds
        self.verify_seconds += verify_seconds
        self.sample_seconds += sample_seconds

    def retract(self, *, accepted: int, rejected: int) -> None:
        """Uncount what of the last round a stop or a budget cut off: its tokens never were.

        Such a round ends on an accepted token, so it emits one token less than passes + accepted.
        """
        self.accepted -= accepted
        self.tested -= accepted + rejected


@dataclass(frozen=True, kw_only=True)
class StageSeconds:
    """Where the time of a generation went, in seconds."""

    draft: float
    verify: float
    sample: float
    other: float


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Figures of one generation so far.

    `time_to_first_token_s` counts from the call to the first token's being decided;
    `decode_tokens_per_s` is `None` until two tokens are out.
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


@dataclass
class Meter:
    """Turns a level's counters and the clock into `Stats`.

    `first_tokens` are the tokens that came with the first round: their time is prefill's.
    """

    level: LevelStats
    started: float
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
        level = self.level
        busy = level.draft_seconds + level.verify_seconds + level.sample_seconds
        whole = (self.last_at or self.started) - self.started
        return Stats(
            target_passes=level.passes,
            drafted=level.drafted,
            tested=level.tested,
            accepted=level.accepted,
            mean_accepted_length=_rate(self.emitted, level.passes),
            acceptance_rate=_rate(level.accepted, level.tested),
            time_to_first_token_s=None if self.first_at is None else self.first_at - self.started,
            decode_tokens_per_s=self._decode_rate(),
            stage_seconds=StageSeconds(
                draft=level.draft_seconds,
                verify=level.verify_seconds,
                sample=level.sample_seconds,
                other=max(0.0, whole - busy),
            ),
        )

    def _decode_rate(self) -> float | None:
        if self.first_at is None or self.last_at is None:
            return None
        return _rate(self.emitted - self.first_tokens, self.last_at - self.first_at)


def _rate(part: float, whole: float) -> float | None:
    return part / whole if whole else None
