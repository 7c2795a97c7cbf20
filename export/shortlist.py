"""Choose the tokens that a trimmed draft may propose.

In: a `Trim` and the target's language. Out: ascending token ids. Tokens that the tokenizer adds,
and those that end a text, are always in. The rest is ranked by counts from files the user names
and by the tokenizer's own order: byte-pair merges were learnt the most frequent first, and unigram
pieces carry a score.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from runtime.vocabulary import Vocabulary, read_vocabulary

from .errors import PlanError
from .language import Language
from .plan import Trim
from .progress import Progress, Stage

_ZIPF_SHIFT = 10  # the first tokens of a language are closer in frequency than 1/rank says
_BLOCK = 1 << 20  # characters of a text encoded at once
_LINE = re.compile(r"(\d{1,9})(?:\s+(\d{1,18}))?")
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


def choose_tokens(trim: Trim, language: Language, *, progress: Progress) -> NDArray[np.int64]:
    """Return the ids that `trim` keeps, ascending.

    Raises:
        PlanError: a file cannot be read or lists no tokens of this language, or the number leaves
            no room beside the tokens that are always in, or is not below the vocabulary.
    """
    if trim.listed is not None:
        listed = read_counts(trim.listed, language)
        return np.array(sorted(_always_kept(language) | listed.keys()), np.int64)
    size = trim.size or 0
    _check_size(size, language)
    counts = Counter[int]()
    for path in trim.counts:
        counts.update(read_counts(path, language))
    if trim.texts:
        total = sum(path.stat().st_size for path in trim.texts if path.is_file())
        with progress.stage("count tokens", total=total, unit="bytes") as stage:
            for path in trim.texts:
                counts.update(_count_text(path, language, stage))
    return choose_most_useful(size, language, counts)


def choose_most_useful(
    size: int, language: Language, counts: Mapping[int, int]
) -> NDArray[np.int64]:
    """Return the `size` most useful tokens, ascending; see `order_by_use`.

    Raises:
        PlanError: the size leaves no room beside the tokens that are always in, or is not below the
            vocabulary.
    """
    _check_size(size, language)
    always = _always_kept(language)
    rest = [token for token in order_by_use(language, counts) if token not in always]
    return np.array(sorted([*always, *rest[: size - len(always)]]), np.int64)


def order_by_use(language: Language, counts: Mapping[int, int]) -> list[int]:
    """Return the language's tokens, the most useful first.

    A token's weight is its share of the counts plus its share of a Zipf law over the tokenizer's
    own order: counts from one field alone would push out the words of every other one.
    """
    rank = rank_tokens(read_vocabulary(language.tokenizer_json))
    order = sorted(rank, key=lambda token: (rank[token], token))
    usual = 1 / (np.arange(len(order)) + _ZIPF_SHIFT)
    seen = np.array([counts.get(token, 0) for token in order])
    weight = seen / max(1, seen.sum()) + usual / usual.sum()
    return [order[place] for place in np.argsort(-weight, kind="stable")]


def read_counts(path: Path, language: Language) -> Mapping[int, int]:
    """Read a file with a token id on each line, or an id and how often it was seen.

    `#` begins a comment; `# tokenizer HASH` is compared with the language's fingerprint.
    Raises PlanError that names the file and line.
    """
    counts = Counter[int]()
    for number, line in enumerate(_read_text(path).splitlines(), start=1):
        content, _, comment = line.partition("#")
        if not content.strip():
            _check_comment(path, comment.split(), language)
            continue
        found = _LINE.fullmatch(content.strip())
        if found is None:
            raise PlanError(
                f"{path}, line {number}: expected a token id, or an id and a count, but found "
                f"{line.strip()[:60]!r}"
            )
        token = int(found[1])
        if token >= language.vocabulary:
            raise PlanError(
                f"{path}, line {number}: token {token} lies outside the target's vocabulary of "
                f"{language.vocabulary} tokens"
            )
        counts[token] += int(found[2] or 1)
    if not counts:
        raise PlanError(f"{path} lists no token: expected an id, or an id and a count, on a line")
    return counts


def rank_tokens(words: Vocabulary) -> dict[int, float]:
    """Return how early the tokenizer learnt each token; the smallest rank is the most frequent."""
    pieces = words.pieces
    if not pieces:
        return {token: float(token) for token in words.tokens}
    if isinstance(pieces[0], float):
        scores = cast("Sequence[float]", pieces)
        return {token: -scores[token] if token < len(scores) else 0.0 for token in words.tokens}
    made: dict[str, int] = {}
    for place, merge in enumerate(cast("Sequence[list[str]]", pieces)):
        made.setdefault("".join(merge), place)
    return {
        token: made.get(text, -1.0 if len(text) == 1 or _BYTE.fullmatch(text) else math.inf)
        for token, text in words.tokens.items()
    }


def _always_kept(language: Language) -> set[int]:
    added = json.loads(language.tokenizer_json).get("added_tokens") or []
    special = {int(token["id"]) for token in added} | set(language.end_ids)
    return special if language.bos_id is None else special | {language.bos_id}


def _check_size(size: int, language: Language) -> None:
    always = len(_always_kept(language))
    if not always < size < language.vocabulary:
        raise PlanError(
            f"--draft-vocab must be above {always}, the number of tokens that are always in, and "
            f"below the vocabulary's {language.vocabulary}, but is {size}"
        )


def _check_comment(path: Path, words: list[str], language: Language) -> None:
    if words[:1] == ["tokenizer"] and words[1:] != [language.fingerprint]:
        raise PlanError(f"{path} counts the tokens of another tokenizer than the target's")


def _count_text(path: Path, language: Language, stage: Stage) -> Counter[int]:
    counts = Counter[int]()
    try:
        with path.open(encoding="utf-8") as file:
            while block := file.read(_BLOCK):
                counts.update(language.encode(block))
                stage.advance(len(block.encode("utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read as UTF-8 text: {_reason(error)}") from None
    return counts


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} cannot be read as UTF-8 text: {_reason(error)}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return str(error.strerror if isinstance(error, OSError) else error)
