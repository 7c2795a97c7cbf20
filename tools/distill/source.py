"""What the target is to answer or to judge: prompts of ours, prompts or texts that a person names.

In: a `Source` and an encoder. Out: batches to train on, always in the same order, and what is held
out to measure on: `tools/prompts`, or every tenth of the person's own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from tools.errors import ToolError
from tools.prompt_sets import deal_out, read_files, read_questions

from .phrases import make_prompts

PIECE_TOKENS = 256  # of given text
LONGEST_PROMPT = 256
CATEGORY = "text"
_HELD_OUT_EVERY = 10
_WINDOW = 8  # batches whose prompts are sorted by length: a batch costs what its longest one does

Thing = TypeVar("Thing")


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a corpus is made of.

    Attributes:
        prompts: a JSONL file of questions or a folder of such files; `None` takes our own.
        texts: plain UTF-8 files, judged as they are; with them no prompt is answered.
        top: how many tokens of each law are kept.
        answer_tokens: the longest answer.
        batch: how many sequences are written at once.
        seed: of prompts and draws.
    """

    prompts: Path | None = None
    texts: tuple[Path, ...] = ()
    top: int = 64
    answer_tokens: int = 192
    batch: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Item:
    """Token ids, and the kind of question or text they are."""

    ids: tuple[int, ...]
    category: str


class Encoder(Protocol):
    """Turns text into the target's tokens."""

    def encode_question(self, text: str) -> list[int]:
        """Return the ids of a prompt that asks `text`."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text, nothing before it."""
        ...

    @property
    def opening(self) -> Sequence[int]:
        """What a text begins with."""
        ...


def make_batches(source: Source, encoder: Encoder) -> Iterator[Sequence[Item]]:
    """Yield batches of `source.batch` items to train on, the same ones in every run.

    Raises:
        ToolError: there is no more, or nothing at all.
    """
    if source.texts:
        pieces = [i for n, i in enumerate(_pieces(source, encoder)) if n % _HELD_OUT_EVERY]
        for place in range(0, len(pieces), source.batch):
            yield pieces[place : place + source.batch]
        raise ToolError(
            f"--text gives only {len(pieces) * PIECE_TOKENS} tokens to train on: add text, or ask "
            "for fewer with --data-tokens"
        )
    if source.prompts is None:
        prompts = _fitting(make_prompts(source.seed), encoder)
        while True:
            yield from _cut(list(islice(prompts, _WINDOW * source.batch)), source.batch)
    given = [q for n, q in enumerate(_given(source.prompts)) if n % _HELD_OUT_EVERY]
    own = list(_fitting(given, encoder))
    if not own:
        raise ToolError(
            f"--prompts {source.prompts} holds no prompt to train on: at least two of up to "
            f"{LONGEST_PROMPT} tokens are needed, one of which is held out"
        )
    while True:  # further answers to the same prompts
        yield from _cut(own, source.batch)


def make_held_out(source: Source, encoder: Encoder) -> list[Item]:
    """Return what is measured on and never trained on.

    Raises:
        ToolError: there is none.
    """
    if source.texts:
        return _pieces(source, encoder)[::_HELD_OUT_EVERY][: source.batch]
    if source.prompts is None:
        questions = [(q.category, q.turns[0]) for q in deal_out(read_questions())]
    else:
        questions = _given(source.prompts)[::_HELD_OUT_EVERY]
    held = list(_fitting(questions, encoder))
    if not held:
        raise ToolError(
            f"no prompt to measure on has up to {LONGEST_PROMPT} tokens: give shorter ones with "
            "--prompts"
        )
    return held


def _given(path: Path) -> list[tuple[str, str]]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ToolError(f"--prompts {path} is a folder without *.jsonl files")
    return [(question.category, question.turns[0]) for question in read_files(files)]


def _fitting(
    prompts: Iterator[tuple[str, str]] | Sequence[tuple[str, str]], encoder: Encoder
) -> Iterator[Item]:
    for category, text in prompts:
        ids = tuple(encoder.encode_question(text))
        if 0 < len(ids) <= LONGEST_PROMPT:
            yield Item(ids, category)


def _cut(items: Sequence[Item], size: int) -> Iterator[list[Item]]:
    """Yield full batches of prompts of like length; the last one is filled up from its start."""
    ordered = sorted(items, key=lambda item: len(item.ids))
    for place in range(0, len(ordered), size):
        yield fill_up(ordered[place : place + size], size)


def fill_up(items: Sequence[Thing], size: int) -> list[Thing]:
    """Return `size` items, those given again and again."""
    return [items[place % len(items)] for place in range(size)]


def _pieces(source: Source, encoder: Encoder) -> list[Item]:
    """Return the texts cut into pieces of `PIECE_TOKENS`; a shorter rest of each is left out."""
    opening = tuple(encoder.opening)
    own = PIECE_TOKENS - len(opening)
    pieces = []
    for path in source.texts:
        ids = encoder.encode_text(_read(path))
        pieces += [
            Item((*opening, *ids[end - own : end]), CATEGORY)
            for end in range(own, len(ids) + 1, own)
        ]
    if len(pieces) < 2:
        raise ToolError(
            f"--text holds fewer than two pieces of {PIECE_TOKENS} tokens, one to train on and one "
            "to measure on: give more text"
        )
    return pieces


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(f"--text {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ToolError(f"--text {path} is not UTF-8 at byte {error.start}: convert it") from None
