"""Train a drafter until its budget is spent, and leave it as it was at its best.

In: a drafter, samples to train on and held-out ones. Out: the learning curve; the drafter holds the
weights of its best point. What was reached is kept in a file, from which the same training goes on
after an interruption; with a budget of tokens it ends as if it had never been interrupted.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from export.bundle import writing
from export.progress import Progress, Stage
from tools.errors import ToolError

from .batches import Columns, deal_samples
from .drafter import Drafter
from .losses import Loss, measure_loss
from .measure import Acceptance, measure_drafter
from .samples import Sample

_WARM_UP = 0.03  # of the budget
_SAVE_EVERY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to train.

    Attributes:
        seconds: the budget of time, measuring included, or `None`.
        tokens: the budget of judged tokens, or `None`; one of the two is given.
        loss: see `losses`.
        rate: the highest learning rate; it falls in a straight line to 0 at the budget's end.
        batch_tokens: judged tokens of a step, about.
        points: how often to measure, evenly over the budget.
        seed: of the order of samples.
    """

    seconds: float | None = None
    tokens: int | None = None
    loss: Loss = "kl"
    rate: float = 1e-3
    batch_tokens: int = 1024
    points: int = 10
    seed: int = 0

    def is_same_training(self, other: Mapping[str, Any]) -> bool:
        """Whether `other` differs in its budget at most, which may be changed on the way."""
        budget = ("seconds", "tokens", "points")
        return all(other.get(k) == v for k, v in asdict(self).items() if k not in budget)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One measurement: after how much training, the mean loss since the last one, what it found."""

    tokens: int
    seconds: float
    loss: float | None
    acceptance: Acceptance


@dataclass
class _State:
    """Where the training stands."""

    epoch: int = 0
    batches: int = 0  # of this epoch
    tokens: int = 0
    seconds: float = 0.0
    loss: float = 0.0  # summed over the tokens since the last point
    tokens_at_point: int = 0
    curve: list[Point] = field(default_factory=list)
    best: dict[str, torch.Tensor] = field(default_factory=dict)


def train_drafter(
    drafter: Drafter,
    train: Sequence[Sample],
    held: Sequence[Sample],
    columns: Columns,
    settings: Settings,
    *,
    state_file: Path,
    identity: str,
    progress: Progress,
    on_point: Callable[[Point], None] = lambda _: None,
    clock: Callable[[], float] = monotonic,
) -> list[Point]:
    """Train `drafter` in place and return its curve.

    Args:
        drafter: on the device where it is to be trained.
        train: samples.
        held: samples to measure on.
        columns: of the drafter's head.
        settings: budget and rates.
        state_file: keeps what was reached; the caller removes it.
        identity: of drafter and samples; a file that says another one is refused.
        progress: tells a person.
        on_point: told of each measurement, those of an interrupted run included.
        clock: seconds.

    Raises:
        ToolError: `state_file` belongs to another training, or the loss is no number any more.
        PublishError: `state_file` cannot be written.
    """
    run = _Run(drafter, settings, state_file, identity, clock)
    run.resume()
    for point in run.state.curve:
        on_point(point)
    steps = _deal(train, settings, run.state)
    total = 1000  # of the budget, whatever it counts
    with progress.stage("train", total=total, done=int(total * run.spent())) as stage:
        while True:
            if run.is_due():
                run.measure(held, columns, on_point)
            if run.spent() >= 1:
                break
            run.step(columns.make_batch(next(steps)).to(drafter.device))
            _tell(stage, run, total)
    run.restore_best()
    return run.state.curve


def _tell(stage: Stage, run: "_Run", total: int) -> None:
    stage.move_to(min(total, int(total * run.spent())))


def _deal(train: Sequence[Sample], settings: Settings, state: _State) -> Any:
    """Yield batches from where the state stands, and count them in it."""
    while True:
        batches = list(
            deal_samples(train, tokens=settings.batch_tokens, epoch=state.epoch, seed=settings.seed)
        )
        for batch in batches[state.batches :]:
            state.batches += 1
            yield batch
        state.epoch, state.batches = state.epoch + 1, 0


class _Run:
    """One training under way."""

    def __init__(
        self,
        drafter: Drafter,
        settings: Settings,
        file: Path,
        identity: str,
        clock: Callable[[], float],
    ) -> None:
        self.state = _State()
        self._drafter = drafter
        self._settings = settings
        self._file = file
        self._identity = identity
        self._clock = clock
        self._began = clock()
        self._saved = clock()
        self._weights = drafter.trained()
        self._optimizer = torch.optim.AdamW(
            self._weights.values(), lr=settings.rate, betas=(0.9, 0.95), weight_decay=0.01
        )

    def spent(self) -> float:
        """Return how much of the budget is spent; 1 and more is all of it."""
        if self._settings.tokens is not None:
            return self.state.tokens / self._settings.tokens
        return self._seconds() / (self._settings.seconds or 1.0)

    def is_due(self) -> bool:
        """Whether the next point of the curve is reached."""
        curve, spent = self.state.curve, self.spent()
        return not curve or (
            curve[-1].tokens < self.state.tokens
            and spent >= min(1.0, len(curve) / self._settings.points)
        )

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        settings, state = self._settings, self.state
        device = self._drafter.device.type
        mixed = torch.autocast(device, torch.bfloat16) if device == "cuda" else nullcontext()
        with mixed:
            scores = self._drafter.scores(batch.tokens, batch.places)
        loss = measure_loss(settings.loss, scores, batch.columns, batch.log_probs, batch.answers)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._weights.values(), 1.0)
        count = len(batch.places)
        state.tokens += count
        for group in self._optimizer.param_groups:
            group["lr"] = settings.rate * _slope(min(1.0, self.spent()))
        self._optimizer.step()
        value = float(loss.detach())
        if not math.isfinite(value):
            raise ToolError(
                f"the loss became {value} after {state.tokens} tokens: take a lower --rate than "
                f"{settings.rate:g}"
            )
        state.loss += value * count
        if self._clock() - self._saved >= _SAVE_EVERY_S:
            self._save()

    def measure(
        self,
        held: Sequence[Sample],
        columns: Columns,
        on_point: Callable[[Point], None],
    ) -> None:
        """Add a point to the curve, keep the weights if they are the best, and save."""
        state = self.state
        acceptance = measure_drafter(self._drafter, held, columns)
        fresh = state.tokens - state.tokens_at_point
        point = Point(
            tokens=state.tokens,
            seconds=self._seconds(),
            loss=state.loss / fresh if fresh else None,
            acceptance=acceptance,
        )
        if all(acceptance.mean > old.acceptance.mean for old in state.curve):
            state.best = self._copy()
        state.curve.append(point)
        state.loss, state.tokens_at_point = 0.0, state.tokens
        self._save()
        on_point(point)

    def restore_best(self) -> None:
        """Give the drafter the weights of its best point."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(self.state.best[name])

    def resume(self) -> None:
        """Go on where the file says, if there is one."""
        try:
            content = self._file.read_bytes()
        except FileNotFoundError:
            return
        try:
            found = torch.load(io.BytesIO(content), weights_only=True)
            same = found["identity"] == self._identity and self._settings.is_same_training(
                found["settings"]
            )
        except Exception as error:  # the library raises many unrelated types
            raise ToolError(
                f"{self._file} is damaged ({type(error).__name__}): remove it to begin anew"
            ) from None
        if not same:
            raise ToolError(
                f"{self._file} belongs to a training of other layers, text or settings: finish "
                "that one with its own options, or remove the file to begin anew"
            )
        with torch.no_grad():
            for name, weight in self._weights.items():
                weight.copy_(found["weights"][name])
        self._optimizer.load_state_dict(found["optimizer"])
        curve = [_read_point(point) for point in found["state"].pop("curve")]
        self.state = _State(**found["state"], curve=curve, best=found["best"])
        self._began = self._clock() - self.state.seconds

    def _seconds(self) -> float:
        return self._clock() - self._began

    def _copy(self) -> dict[str, torch.Tensor]:
        return {name: p.detach().cpu().clone() for name, p in self._weights.items()}

    def _save(self) -> None:
        state = self.state
        state.seconds = self._seconds()
        content = {
            "identity": self._identity,
            "settings": asdict(self._settings),
            "weights": self._copy(),
            "best": state.best,
            "optimizer": self._optimizer.state_dict(),
            "state": {
                **{k: v for k, v in vars(state).items() if k not in ("curve", "best")},
                "curve": [asdict(point) for point in state.curve],
            },
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        partial = self._file.with_suffix(".partial")
        try:
            with writing(self._file):
                partial.write_bytes(buffer.getbuffer())
                partial.replace(self._file)
        finally:
            partial.unlink(missing_ok=True)
        self._saved = self._clock()


def _slope(spent: float) -> float:
    """Return the learning rate as a share of the highest one."""
    return min(spent / _WARM_UP, (1 - spent) / (1 - _WARM_UP))


def _read_point(found: dict[str, Any]) -> Point:
    return Point(**{**found, "acceptance": Acceptance(**found["acceptance"])})
