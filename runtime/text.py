"""The text of an answer while it grows: ids in, text that is safe to show out.

`StreamDecoder` turns ids into text and never shows half a character; `StopMatcher` holds back
what may become a stop string; `TextStream` is both, and tells which token completed a stop.
Joined pieces equal the tokenizer's decoding of all ids, cut at the stop.
"""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import RequestError
from .tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4  # bytes, so a character spans at most as many tokens


@dataclass(frozen=True)
class Piece:
    """What feeding tokens made visible.

    `text` excludes stop strings. `tokens` counts the ids that were taken: when `stopped`, the last
    of them completed a stop string, belongs to the answer, and nothing after it does.
    """

    text: str
    stopped: bool
    tokens: int


class StreamDecoder:
    """Decode ids piece by piece; the pieces and the flush join to the decoding of all ids.

    U+FFFD appears only where bytes cannot be completed. Work per token is bounded: byte-level
    vocabularies are decoded byte by byte, others by decoding the new tokens behind the last one
    shown, which is as far as their rules look back. A run of byte-fallback tokens is held until
    it ends, because their decoder judges a run as a whole.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        make_part = _ByteLevelPart if tokenizer.is_byte_level else _WindowPart
        self._part: _ByteLevelPart | _WindowPart = make_part(tokenizer)

    def push(self, ids: Iterable[int]) -> str:
        """Take ids and return the text that no later id can change."""
        return "".join(self._part.push(i) for i in ids if self._is_shown(i))

    def peek(self, endings: Iterable[bytes]) -> str:
        """Return the held text if it may end in one of `endings` (UTF-8), else nothing."""
        return self._part.peek(endings)

    def flush(self) -> str:
        """Return what is held, an unfinished character as U+FFFD; a new stream may begin."""
        return self._part.flush()

    def _is_shown(self, token_id: int) -> bool:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return False
        return self._tokenizer.id_to_token(token_id) is not None


class StopMatcher:
    """Find stop strings in a text that arrives in pieces, and hold back what may become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.stops = (stops,) if isinstance(stops, str) else tuple(stops)
        for number, stop in enumerate(self.stops):
            if not isinstance(stop, str) or not stop:
                raise RequestError(f"stop[{number}] must be a non-empty text, not {stop!r}")
        self._longest = max(map(len, self.stops), default=1)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Take text; return what may be shown, and whether a stop string was completed.

        With several matches the one that begins first counts; it and what follows are dropped.
        """
        text, self._held = self._held + text, ""
        matches = [at for stop in self.stops if (at := text.find(stop)) >= 0]
        if matches:
            return text[: min(matches)], True
        shown = self._find_beginning(text)
        text, self._held = text[:shown], text[shown:]
        return text, False

    def would_stop(self, text: str) -> bool:
        """Whether pushing the text would complete a stop string."""
        return any(stop in self._held + text for stop in self.stops)

    def flush(self) -> str:
        """Return what was held back: the text ended before it became a stop string."""
        held, self._held = self._held, ""
        return held

    def _find_beginning(self, text: str) -> int:
        """Return where the longest ending begins that a stop string may grow from."""
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if any(stop.startswith(text[at:]) for stop in self.stops):
                return at
        return len(text)


class TextStream:
    """The text of one answer: tokens in, pieces out, cut at the first completed stop string.

    A stop is completed by the first token with which the decoding of all tokens so far contains
    it, however many tokens a round brings. Feed a round's tokens here before they are committed.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._matcher = StopMatcher(stops)
        self._decoder = StreamDecoder(tokenizer)
        self._endings = [stop.encode("utf-8", "surrogatepass") for stop in self._matcher.stops]
        self.stopped = False

    def push(self, token_id: int) -> Piece:
        """Take one token; after a stop nothing is taken any more."""
        if self.stopped:
            return Piece("", stopped=True, tokens=0)
        text = self._decoder.push([token_id])
        text, self.stopped = self._matcher.push(text)
        if not self.stopped and self._matcher.would_stop(self._decoder.peek(self._endings)):
            rest, self.stopped = self._matcher.push(self._decoder.flush())
            text += rest
        return Piece(text, stopped=self.stopped, tokens=1)

    def flush(self) -> str:
        """Return what was held back, once, when no further token will come."""
        if self.stopped:
            return ""
        text, self.stopped = self._matcher.push(self._decoder.flush())
        return text + self._matcher.flush()


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes printable bytes as themselves, the others from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTES = _byte_alphabet()


class _ByteLevelPart:
    """Tokens are bytes, and bytes are UTF-8: nothing else to remember than an open character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        token = self._tokenizer.id_to_token(token_id) or ""
        try:
            raw = bytes(_BYTES[character] for character in token)
        except KeyError:  # an added token, written as it reads
            raw = token.encode()
        return self._utf8.decode(raw)

    def peek(self, _endings: Iterable[bytes]) -> str:
        return ""

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowPart:
    """Decode the held tokens behind the last shown one, and show what that adds to it alone."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._byte_values = tokenizer.byte_values
        self._begin([])

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        if token_id in self._byte_values:
            self._run.append(self._byte_values[token_id])
            return ""
        text = self._held_text()
        if text.endswith(_REPLACEMENT) and len(self._held) < _LONGEST_CHARACTER:
            return ""  # a byte-level step inside a longer decoder
        self._begin([token_id])
        return text

    def peek(self, endings: Iterable[bytes]) -> str:
        run = bytes(self._run)
        if run and any(run.endswith(ending[-len(run) :]) for ending in endings):
            return self._held_text()
        return ""

    def flush(self) -> str:
        text = self._held_text()
        self._begin([])
        return text

    def _held_text(self) -> str:
        whole = self._tokenizer.decode(self._shown + self._held, skip_special=False)
        return whole[len(self._shown_text) :]

    def _begin(self, shown: list[int]) -> None:
        self._shown = shown
        self._shown_text = self._tokenizer.decode(shown, skip_special=False)
        self._held: list[int] = []
        self._run = bytearray()  # bytes of the byte-fallback tokens that end the held ones
