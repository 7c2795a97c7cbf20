"""From logits to laws: one rule for target and draft, the order of settings fixed and documented.

In: a row of logits and the tokens before it. Out: a `Law`. The steps, each skipped at its neutral
value: logit bias, end tokens held back (`min_tokens`), repetition, presence and frequency
penalties, temperature (0 = greedy: arg max, lowest id on ties), top-k, top-p, min-p.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ForerunError, NoTokenLeftError, RequestError
from .law import Law, race
from .logits import Best
from .noise import Noise

MOST_BEST = 256  # of a row, beyond which all of it is read

Row = NDArray[np.float32]  # [vocabulary], or one number for each of some ids
Ids = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling settings of one request.

    Attributes:
        temperature: logits are divided by it; 0 is greedy, whatever else is set.
        top_k: keep the k likeliest tokens (ties at the edge: lowest ids first); 0 is off.
        top_p: keep the smallest set of likeliest tokens of at least this mass; 1 is off.
        min_p: keep tokens of at least this share of the likeliest one's probability; 0 is off.
        repetition_penalty: divides positive and multiplies negative logits of tokens seen in
            prompt or output; 1 is off.
        presence_penalty: subtracted from the logits of tokens seen in the output; 0 is off.
        frequency_penalty: the same, once per occurrence in the output; 0 is off.
        logit_bias: added to the logits of single tokens; −inf bans a token.
        min_tokens: end-of-text tokens have probability zero before this many tokens.
        coupled: draw by noise that target and draft share, so that a seed's text depends on the
            target and the settings alone, not on the drafter.

    Raises:
        RequestError: a value is out of range; the text names the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    coupled: bool = False

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, low=0.0, high=math.inf)
        check_whole("top_k", self.top_k, low=0)
        _check_number("top_p", self.top_p, low=0.0, high=1.0)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        # Wider ones leave float32, in which logits are kept.
        _check_number("repetition_penalty", self.repetition_penalty, low=0.01, high=100.0)
        _check_number("presence_penalty", self.presence_penalty, low=-100.0, high=100.0)
        _check_number("frequency_penalty", self.frequency_penalty, low=-100.0, high=100.0)
        check_whole("min_tokens", self.min_tokens, low=0)
        if not isinstance(self.coupled, bool):
            raise RequestError(f"coupled must be true or false, but is {self.coupled!r}")
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r}")
        for token, bias in self.logit_bias.items():
            check_whole("logit_bias token", token, low=0)
            if bias != -math.inf:
                _check_number("logit_bias", bias, low=-1e30, high=1e30)

    @property
    def is_greedy(self) -> bool:
        """Whether every law is a point mass on the arg max."""
        return self.temperature == 0

    @property
    def is_matched(self) -> bool:
        """Whether target and draft choose for themselves and are then compared."""
        return self.is_greedy or self.coupled


class Sampler:
    """Turns logits into laws for one request.

    Args:
        settings: the request's sampling settings.
        vocabulary: number of tokens.
        prompt_length: how many tokens of every sequence are prompt.
        end_ids: end-of-text tokens, held back until `min_tokens` are out.
        noise: the request's noise, used when coupled.
        tells_certainty: greedy laws say how sure the model was (for drafters).

    Raises:
        RequestError: a bias names a token outside the vocabulary.
    """

    def __init__(
        self,
        settings: Sampling,
        *,
        vocabulary: int,
        prompt_length: int,
        end_ids: Sequence[int],
        noise: Noise,
        tells_certainty: bool = False,
    ) -> None:
        self._settings = settings
        self._tells_certainty = tells_certainty
        self._vocabulary = vocabulary
        self._prompt_length = prompt_length
        self._noise = noise
        self._end_ids = np.array(end_ids, np.int64)
        check_bias(settings.logit_bias, vocabulary)
        self._bias_ids = np.array(list(settings.logit_bias), np.int64)
        self._bias = np.array(list(settings.logit_bias.values()), np.float32)
        self._counts = _Counts(prompt_length)
        self._has_penalties = (
            settings.repetition_penalty != 1
            or settings.presence_penalty != 0
            or settings.frequency_penalty != 0
        )
        self._is_plain = not (len(self._bias) or self._has_penalties or settings.min_tokens)

    @property
    def best(self) -> Best | None:
        """The part of a row that decides its law, `None` if that may be all of it."""
        settings = self._settings
        count = 1 if settings.is_greedy else settings.top_k
        if not self._is_plain or not 0 < count <= MOST_BEST:
            return None
        return Best(count=count, temperature=settings.temperature or 1.0)

    def laws(self, logits: NDArray[np.float32], prefix: Sequence[int]) -> list[Law]:
        """Return the law of each row.

        Args:
            logits: `[rows, vocabulary]`; the last row follows the whole prefix, row r the prefix
                without its last `rows − 1 − r` tokens.
            prefix: the tokens before the last row, drafted ones included.
        """
        before = len(prefix) - len(logits) + 1
        return [self.law(row, prefix, before + i) for i, row in enumerate(logits)]

    def law(self, row: Row, prefix: Sequence[int], length: int) -> Law:
        """Return the law of the token after the first `length` tokens of `prefix`."""
        if not self._is_plain:
            row = self.adjusted(row, prefix, length)
        return self._choose(row, length)

    def sparse_law(
        self, ids: Ids, weights: NDArray[Any], prefix: Sequence[int], length: int
    ) -> Law | None:
        """Return the law of the same place where only the tokens `ids` are possible.

        Args:
            ids: token ids, ascending; `[n]`.
            weights: their probabilities before all settings; `[n]`.
            prefix: the tokens before, drafted ones included.
            length: how many of them stand before the token.

        Returns:
            `None` when the settings ban every one of them.
        """
        with np.errstate(divide="ignore"):  # the log of 0 means: never
            row = np.log(weights).astype(np.float32)
        if not self._is_plain:
            row = self.adjusted(row, prefix, length, ids)
        return self._choose(row, length, ids) if row.max() > -np.inf else None

    def _choose(self, row: Row, length: int, ids: Ids | None = None) -> Law:
        if self._settings.is_greedy:
            place = _arg_max(row)
            certainty = _lead(row, place) if self._tells_certainty else None
            return Law.point(place if ids is None else int(ids[place]), certainty)
        law = make_law(row, self._settings)
        if ids is not None:
            law = Law(law.weights, ids if law.ids is None else ids[law.ids])
        if self._settings.coupled:
            token = race(law, self._noise.exponentials(length, self._vocabulary))
            return Law.point(token, float(law.probability(token)))
        return law

    def adjusted(self, row: Row, prefix: Sequence[int], length: int, ids: Ids | None = None) -> Row:
        """Return the row after bias, held back end tokens and penalties, before temperature.

        The row stands for the tokens `ids`, ascending, or for all.
        """
        row = row.copy()
        places, known = _find(self._bias_ids, ids)
        row[places] += self._bias[known]
        if length - self._prompt_length < self._settings.min_tokens:
            row[_find(self._end_ids, ids)[0]] = -np.inf
        if self._has_penalties:
            self._counts.sync(prefix, length)
            self._penalise(row, ids)
        return row

    def _penalise(self, row: Row, ids: Ids | None) -> None:
        settings = self._settings
        seen, output, counts = self._counts.arrays()
        places, _ = _find(seen, ids)
        values = row[places]
        factor = np.float32(settings.repetition_penalty)
        row[places] = np.where(values > 0, values / factor, values * factor)
        places, known = _find(output, ids)
        row[places] -= np.float32(settings.presence_penalty)
        row[places] -= np.float32(settings.frequency_penalty) * counts[known]


def _find(tokens: Ids, ids: Ids | None) -> tuple[Ids, Any]:
    """Return where among the ascending `ids` the tokens stand, and which of them do."""
    if ids is None:
        return tokens, slice(None)
    places = ids.searchsorted(tokens).clip(max=len(ids) - 1)
    known = ids[places] == tokens
    return places[known], known


class _Counts:
    """How often each token stands in the sequence, kept in step with the prefix of each row."""

    def __init__(self, prompt_length: int) -> None:
        self._prompt_length = prompt_length
        self._tokens: list[int] = []
        self._seen: Counter[int] = Counter()
        self._output: Counter[int] = Counter()

    def sync(self, prefix: Sequence[int], length: int) -> None:
        """Count the first `length` tokens of `prefix`, starting from what is counted already."""
        while self._tokens != prefix[: min(len(self._tokens), length)]:
            self._count(self._tokens.pop(), len(self._tokens), -1)
        for place in range(len(self._tokens), length):
            self._tokens.append(prefix[place])
            self._count(prefix[place], place, 1)

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
        """Return the ids seen anywhere, the ids in the output, and the latter's counts."""
        seen = np.fromiter(self._seen, np.int64, len(self._seen))
        output = np.fromiter(self._output, np.int64, len(self._output))
        counts = np.fromiter(self._output.values(), np.float32, len(self._output))
        return seen, output, counts

    def _count(self, token: int, place: int, change: int) -> None:
        counters = [self._seen] if place < self._prompt_length else [self._seen, self._output]
        for counter in counters:
            counter[token] += change
            if not counter[token]:
                del counter[token]


def make_law(row: Row, settings: Sampling) -> Law:
    """Return the law of `row` under temperature and truncation (temperature above 0)."""
    peak = row[_arg_max(row)]
    ids = _possible_ids(row)
    row = row if ids is None else row[ids]
    if peak == np.inf:
        scaled = np.where(row == np.inf, 0.0, -np.inf)  # the limit: all mass on the infinities
    else:
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the peak to −inf
            scaled = np.subtract(row, peak, dtype=np.float64)
            if settings.temperature != 1:
                scaled /= settings.temperature
    kept = _top_k_places(scaled, settings.top_k)
    if kept is not None:
        scaled, ids = scaled[kept], kept if ids is None else ids[kept]
    weights = np.exp(scaled, out=scaled)
    weights /= weights.sum()
    law = Law(weights, ids)
    if settings.top_p < 1:
        law = _keep(law, _top_p_places(law.weights, settings.top_p))
    if settings.min_p > 0:
        law = _keep(law, np.flatnonzero(law.weights >= settings.min_p * law.weights.max()))
    return law


def _arg_max(row: Row) -> int:
    place = int(row.argmax())  # the first of equal maxima; a NaN wins over every number
    if np.isnan(row[place]):
        raise ForerunError(
            "the model's logits hold no usable number (NaN): export the model again with a higher "
            "precision"
        )
    if row[place] == -np.inf:
        raise NoTokenLeftError(
            "the model's logits hold no usable number, as every token is banned: check logit_bias"
        )
    return place


def _lead(row: Row, best: int) -> float:
    """Return the share of the best token in the probability of the two best."""
    second = max(row[:best].max(initial=-np.inf), row[best + 1 :].max(initial=-np.inf))
    return float(1 / (1 + np.exp(np.float64(second) - np.float64(row[best]))))


def _possible_ids(row: Row) -> NDArray[np.int64] | None:
    """Return the tokens above −inf where they are the fewer; exp takes longest over −inf."""
    if 2 * np.count_nonzero(row == -np.inf) < len(row):
        return None
    return np.flatnonzero(row > -np.inf)


def _top_k_places(scaled: NDArray[np.float64], k: int) -> NDArray[np.int64] | None:
    if k == 0 or k >= len(scaled):
        return None
    edge = np.partition(scaled, len(scaled) - k)[len(scaled) - k]
    above = np.flatnonzero(scaled > edge)
    level = np.flatnonzero(scaled == edge)[: k - len(above)]
    return np.sort(np.concatenate([above, level]))


def _top_p_places(weights: NDArray[np.float64], top_p: float) -> NDArray[np.int64]:
    """Return the places of the smallest set of likeliest tokens that has mass ≥ top_p."""
    size = 128
    while True:
        size = min(size, len(weights))
        edge = np.partition(weights, len(weights) - size)[len(weights) - size]
        places = np.flatnonzero(weights >= edge)  # at least `size` of them, ties included
        order = places[np.argsort(-weights[places], kind="stable")]
        mass = np.cumsum(weights[order])
        if mass[-1] >= top_p or size == len(weights):
            count = int(mass.searchsorted(top_p)) + 1
            return np.sort(order[:count])
        size *= 8


def _keep(law: Law, places: NDArray[np.int64]) -> Law:
    weights = law.weights[places]
    return Law(weights / weights.sum(), places if law.ids is None else law.ids[places])


def check_whole(name: str, value: Any, *, low: int) -> None:
    """Refuse a `value` that is not a whole number of at least `low`.

    Raises:
        RequestError: names the field.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < low:
        raise RequestError(f"{name} must be a whole number of at least {low}, but is {value!r}")


def _check_number(name: str, value: Any, *, low: float, high: float) -> None:
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not low <= value <= high or math.isinf(value):
        span = f"at least {low:g}" if math.isinf(high) else f"between {low:g} and {high:g}"
        raise RequestError(f"{name} must be a number, {span}, but is {value!r}")


def check_bias(bias: Mapping[int, float], vocabulary: int) -> None:
    """Refuse a bias on a token outside the vocabulary.

    Raises:
        RequestError: names the token.
    """
    for token in bias:
        if token >= vocabulary:
            raise RequestError(
                f"logit_bias names token {token}, but the vocabulary has {vocabulary} tokens"
            )
