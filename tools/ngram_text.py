"""What n-grams are counted in: text files, stored answers, or answers that the target writes now.

In: where to take it from. Out: token sequences of a bundle's tokenizer, with a name.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from export.progress import Progress
from runtime import Engine
from runtime.bundle import Bundle
from runtime.store import read_store
from runtime.tokenizer import Tokenizer

from .errors import ToolError

_PIECE = 1 << 20  # characters that are encoded at a time
_SEAM = 8  # tokens of a prompt that are counted again with each further answer
_ANSWER_TOKENS = 256


@dataclass(frozen=True)
class TokenText:
    """Token sequences and what they are."""

    name: str
    sequences: list[list[int]]

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(map(len, self.sequences))


def read_texts(bundle: Bundle, paths: Sequence[Path], *, progress: Progress) -> TokenText:
    """Return the tokens of UTF-8 files.

    Raises:
        ToolError: one cannot be read, or is not UTF-8.
    """
    texts = [_read(path) for path in paths]
    tokenizer = Tokenizer.load(bundle.tokenizer)
    sequences = []
    with progress.stage("encode", total=sum(map(len, texts))) as stage:
        for text in texts:
            ids: list[int] = []
            for piece in _pieces(text):
                ids += tokenizer.encode(piece)
                stage.advance(len(piece))
            sequences.append(ids)
    name = paths[0].name if len(paths) == 1 else f"{len(paths)} text files"
    return TokenText(name, sequences)


def read_answers(bundle: Bundle, path: Path) -> TokenText:
    """Return the sequences of a store of past answers.

    Raises:
        StoreError: there is no store at `path`.
        ToolError: it belongs to another tokenizer.
    """
    contents = read_store(path)
    if contents.fingerprint != bundle.manifest.tokenizer.fingerprint:
        raise ToolError(
            f"--store {path} holds the tokens of another tokenizer than {bundle.folder}'s"
        )
    sequences = [memoryview(record).cast("i").tolist() for record in contents.records]
    return TokenText("stored answers", sequences)


def write_answers(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, *, progress: Progress
) -> TokenText:
    """Let the target answer the prompts again and again until it has written so many tokens.

    The first answers are greedy, further ones are drawn at temperature 1. They do not depend on the
    machine: draws are coupled, and the same command writes the same text.
    """
    sequences: list[list[int]] = []
    written = 0
    with progress.stage("write answers", total=tokens) as stage:
        for turn in count():
            for prompt in prompts:
                answer = engine.complete(
                    prompt,
                    max_tokens=min(_ANSWER_TOKENS, tokens - written),
                    temperature=float(turn > 0),
                    seed=turn,
                    coupled=turn > 0,
                )
                seam = len(prompt) if turn == 0 else _SEAM
                sequences.append([*prompt[-seam:], *answer.token_ids])
                written += len(answer.token_ids)
                stage.move_to(written)
                if written >= tokens:
                    return TokenText(f"{written} tokens of own answers", sequences)
    raise AssertionError("turns without end")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ToolError(f"--text {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ToolError(f"--text {path} is not UTF-8 at byte {error.start}: convert it") from None


def _pieces(text: str) -> Iterator[str]:
    """Cut a text behind ends of lines, about every `_PIECE` characters."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE) + 1 or len(text)
        yield text[start:end]
        start = end
