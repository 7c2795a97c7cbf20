"""What a caller may ask of a generation, parsed once at the edge.

In: the keywords of `Engine.generate` (the command's options with underscores). Out: a frozen
`Request`, or a `RequestError` that names the field. Nothing behind this file checks options again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypedDict

from .errors import RequestError
from .noise import fresh_seed
from .sampling import Sampling, check_whole

DEFAULT_MAX_TOKENS = 256
MAX_DRAFT = 64
SPECULATE = ("auto", "off")
RULES = ("auto", "block", "token")
NUMERICS = ("default", "fixed-width")


class Options(TypedDict, total=False):
    """Keywords of a generation; `Sampling` documents those that shape the law.

    Attributes:
        max_tokens: the most tokens to emit, end-of-text token included (default 256).
        stop: strings that end the text; they are not part of it.
        ignore_eos: go on after end-of-text tokens.
        seed: of the draws, 0 ≤ seed < 2^64; a fresh one is taken and reported without it.
        speculate: `auto`, `off` for plain decoding, or `k=N` for k.
        k: the most tokens drafted in a round of the target; without it the stack's default.
        stages: the drafters to stack, bottom first: `suffix` or `lookup`, then names of the
            bundle's drafts; `suffix|draft` offers both side by side, `draft:2` sets the stage's k.
        numerics: matters for bundles whose kernels round a single row in their own way (int4 in
            blocks of more than 32). `default` runs passes at the fastest width; `fixed-width`, and
            coupled sampling always, at even widths, so that text is the same on and off.
        rule: acceptance rule when sampling with a draft model; `auto` is `block`.
    """

    max_tokens: int
    stop: Sequence[str]
    ignore_eos: bool
    seed: int | None
    speculate: str
    k: int | None
    stages: Sequence[str] | None
    rule: str
    numerics: str
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    coupled: bool


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request; the fields are those of `Options`."""

    sampling: Sampling
    seed: int
    max_tokens: int = DEFAULT_MAX_TOKENS
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    speculate: str = "auto"
    k: int | None = None
    stages: tuple[str, ...] | None = None
    rule: str = "auto"
    numerics: str = "default"

    @property
    def has_even_widths(self) -> bool:
        """Whether passes run at even widths, which all give the same bits."""
        return self.numerics == "fixed-width" or self.sampling.coupled

    @property
    def is_plain(self) -> bool:
        """Whether nothing is to be drafted."""
        return self.speculate == "off" or self.k == 0


def make_request(options: Options) -> Request:
    """Return the request that the keywords spell.

    Raises:
        RequestError: an unknown keyword, or a value out of range.
    """
    known = set(Options.__annotations__)
    if unknown := sorted(set(options) - known):
        raise RequestError(f"unknown option {unknown[0]!r}; known are {', '.join(sorted(known))}")
    names = {field.name for field in fields(Sampling)}
    shaping = {name: value for name, value in options.items() if name in names}
    shaping.setdefault("temperature", 0.0)
    seed = options.get("seed")
    speculate, k = _read_speculate(options.get("speculate", "auto"), options.get("k"))
    request = Request(
        sampling=Sampling(**shaping),  # type: ignore[arg-type]  # each value is checked there
        seed=fresh_seed() if seed is None else seed,
        max_tokens=options.get("max_tokens", DEFAULT_MAX_TOKENS),
        stop=_as_texts("stop", options.get("stop", ())),
        ignore_eos=options.get("ignore_eos", False),
        speculate=speculate,
        k=k,
        stages=None if options.get("stages") is None else _as_texts("stages", options["stages"]),
        rule=options.get("rule", "auto"),
        numerics=options.get("numerics", "default"),
    )
    _check(request)
    return replace(request, seed=int(request.seed))  # NumPy's whole numbers are welcome too


def check_ids(ids: object, vocabulary: int) -> list[int]:
    """Return a prompt's token ids as a list.

    Raises:
        RequestError: they are no list, or one of them is no token.
    """
    if not isinstance(ids, Sequence) or isinstance(ids, bytes | bytearray):
        raise RequestError(f"prompt must be a text or a list of token ids, but is {ids!r}")
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            raise RequestError(
                f"prompt holds the token id {token!r}, but ids are whole numbers from 0 to "
                f"{vocabulary - 1}"
            )
    return list(ids)


def _read_speculate(speculate: object, k: int | None) -> tuple[str, int | None]:
    """Return the mode and k: `k=4` is another way to say k."""
    if not isinstance(speculate, str) or not speculate.startswith("k="):
        return str(speculate), k
    number = speculate.removeprefix("k=")
    if not number.isdecimal() or k not in (None, int(number)):
        raise RequestError(
            f"speculate must be auto, off or k=N, and k the same if both are given, but they are "
            f"{speculate!r} and {k!r}"
        )
    return "auto", int(number)


def _as_texts(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
        raise RequestError(f"{name} must be a list of texts, but is {value!r}")
    return tuple(value)


def _check(request: Request) -> None:
    check_whole("max_tokens", request.max_tokens, low=0)
    check_whole("seed", request.seed, low=0)
    if request.seed >= 1 << 64:
        raise RequestError(f"seed must be below 2^64, but is {request.seed}")
    if not isinstance(request.ignore_eos, bool):
        raise RequestError(f"ignore_eos must be true or false, but is {request.ignore_eos!r}")
    if any(not stop for stop in request.stop):
        raise RequestError("stop must not hold an empty text: it would end every answer at once")
    if request.speculate not in SPECULATE:
        raise RequestError(f"speculate must be auto, off or k=N, but is {request.speculate!r}")
    _check_choice("rule", request.rule, RULES)
    _check_choice("numerics", request.numerics, NUMERICS)
    if request.k is not None:
        check_whole("k", request.k, low=0)
        if request.k > MAX_DRAFT:
            raise RequestError(f"k must be at most {MAX_DRAFT}, but is {request.k}")


def _check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise RequestError(f"{name} must be one of {', '.join(allowed)}, but is {value!r}")
