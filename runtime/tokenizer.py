"""Text to token ids and back, from a bundle's `tokenizer.json`.

In: text. Out: ids, and text again. The one idea here is the *guard*: text typed by a user may
spell a control token such as `<|im_end|>`; a guarded text has the first character of each such
spelling replaced by a stand-in, which is put back only after control tokens were looked for.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from .errors import BundleError, RequestError

# Unicode noncharacters: reserved for use inside one program, so no text means anything by them.
_STAND_INS = [chr(c) for c in range(0xFDD0, 0xFDF0)]
_STAND_INS += [chr(plane << 16 | low) for plane in range(1, 17) for low in (0xFFFE, 0xFFFF)]
_WRITTEN_AS_CONTROL = re.compile("<[|\uff5c].*[|\uff5c]>", re.DOTALL)
_UNKNOWN = "\U0003134f"  # a character that a vocabulary has no token for, if it lacks any
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A fast tokenizer, read-only after loading.

    Control tokens are the added tokens that are special, or written `<|…|>` whatever their flag
    says. Other added tokens (runs of spaces, HTML tags, `<think>`) and those of one character are
    ordinary vocabulary and are matched in every text, as the reference does.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_truncation()  # a stored training setting would silently cut prompts
        inner.no_padding()
        self._inner = inner
        added = inner.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self._control = {i: token.content for i, token in added.items() if _is_control(token)}
        self._unknown_ids = frozenset(self._encoding(inner, _UNKNOWN).ids)
        firsts = sorted({content[0] for content in self._control.values()})
        if len(firsts) > len(_STAND_INS):
            raise BundleError(
                f"tokenizer.json has control tokens with {len(firsts)} different first characters, "
                f"more than the {len(_STAND_INS)} that can be kept apart from user text"
            )
        self._stand_in = dict(zip(firsts, _STAND_INS, strict=False))
        self.vocab_size = 1 + max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        self._opening = self._find_opening()

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a `tokenizer.json`; raises `BundleError` when it is missing or unusable."""
        try:
            return cls(tokenizers.Tokenizer.from_str(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise BundleError(f"{path} cannot be read: {error.strerror or error}") from error
        except BundleError:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise BundleError(f"{path} is not a usable tokenizer.json: {error}") from error

    def encode(
        self, text: str, *, add_special: bool = False, allow_special: bool = True
    ) -> list[int]:
        """Encode a text to ids.

        `allow_special` honours control tokens spelled in the text: right for raw prompts, into
        which people paste whole templates; what a user typed in a chat is encoded without it.
        `add_special` opens the text as the tokenizer wants it (BOS), unless the text already
        begins so. Nothing is ever appended: the text is to be continued.
        Raises `RequestError` for text that is not valid Unicode.
        """
        if allow_special:
            ids = list(self._encoding(self._inner, text).ids)
        else:
            ids = self.encode_guarded(self.guard(text))
        opening = self._opening if add_special else []
        return ids if ids[: len(opening)] == opening else opening + ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Decode ids to text; ids that stand for no token (padded logits) decode to nothing."""
        # Left out here by id: the library compares texts, which a normalizer may have changed.
        left_out = self._special_ids if skip_special else frozenset()
        kept = [int(i) for i in ids if 0 <= i < self.vocab_size and i not in left_out]
        return str(self._inner.decode(kept, skip_special_tokens=False))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token given as the vocabulary writes it, or `None`."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def id_to_token(self, token_id: int) -> str | None:
        """Return the token of an id as the vocabulary writes it, or `None`."""
        found: str | None = None
        if 0 <= token_id < self.vocab_size:
            found = self._inner.id_to_token(int(token_id))
        return found

    def is_special(self, token_id: int) -> bool:
        """Whether decoding skips the token by default."""
        return token_id in self._special_ids

    def guard(self, text: str) -> str:
        """Return the text so marked that no control token is found in it.

        Also an unfinished control token at the end is marked, so that joining two texts cannot
        spell one. Noncharacters that are used as marks become U+FFFD.
        """
        text = self._marks.sub("\ufffd", text)
        text = self._control_start.sub(lambda found: self._stand_in[found[0]], text)
        longest = max(map(len, self._control.values()), default=1) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if text[start:] in self._unfinished:
                text = text[:start] + self._stand_in[text[start]] + text[start + 1 :]
        return text

    def encode_guarded(self, text: str) -> list[int]:
        """Encode a text of which parts are guarded: only control tokens outside them are honoured.

        Without a guarded control token the ids are those of the text as a whole. Raises
        `RequestError` when the vocabulary can write one only as the control token itself.
        """
        for inner in self._readers(text):
            encoding = self._encoding(inner, text)
            misread = self._find_misread(encoding, text)
            if misread is None:
                return list(encoding.ids)
        raise RequestError(
            f"the text holds {misread!r}, which this model cannot read as plain text"
        )

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether every token stands for bytes, written in the byte-level alphabet."""
        kinds = set(self._decoder_kinds)
        return "ByteLevel" in kinds and kinds <= {"ByteLevel", "Fuse"}

    @cached_property
    def byte_values(self) -> dict[int, int]:
        """The byte of each byte-fallback token (`<0xE2>`) by id; empty without byte fallback."""
        if "ByteFallback" not in self._decoder_kinds:
            return {}
        vocab = self._inner.get_vocab(with_added_tokens=True)
        found = ((i, _BYTE_TOKEN.fullmatch(token)) for token, i in vocab.items())
        return {i: int(match[1], 16) for i, match in found if match}

    @cached_property
    def _decoder_kinds(self) -> tuple[str, ...]:
        if self._inner.decoder is None:
            return ()
        decoder = json.loads(self._inner.decoder.__getstate__())
        return tuple(step["type"] for step in decoder.get("decoders", [decoder]))

    @cached_property
    def _marks(self) -> re.Pattern[str]:
        return re.compile(f"[{''.join(self._stand_in.values())}]" if self._stand_in else r"(?!)")

    @cached_property
    def _control_start(self) -> re.Pattern[str]:
        # The first character of every spelling, overlapping ones included.
        rests: dict[str, list[str]] = {first: [] for first in self._stand_in}
        for content in self._control.values():
            rests[content[0]].append(re.escape(content[1:]))
        starts = (f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items())
        return re.compile("|".join(starts) or r"(?!)")

    @cached_property
    def _unfinished(self) -> frozenset[str]:
        return frozenset(c[:n] for c in self._control.values() for n in range(1, len(c)))

    @cached_property
    def _guarded_inner(self) -> tokenizers.Tokenizer:
        """The same tokenizer, putting stand-ins back after control tokens were looked for."""
        content: dict[str, Any] = json.loads(self._inner.to_str())
        steps = [
            {"type": "Replace", "pattern": {"String": mark}, "content": first}
            for first, mark in self._stand_in.items()
        ]
        steps += [content["normalizer"]] if content["normalizer"] else []
        content["normalizer"] = {"type": "Sequence", "normalizers": steps}
        for added in content["added_tokens"]:
            if added["id"] in self._control:
                added["normalized"] = False  # looked for before the normalizer runs
        return tokenizers.Tokenizer.from_str(json.dumps(content))

    def _readers(self, text: str) -> Iterator[tokenizers.Tokenizer]:
        # The second costs a moment to build and most texts hold no control token.
        if not self._marks.search(text):
            yield self._inner
        yield self._guarded_inner

    def _find_misread(self, encoding: tokenizers.Encoding, text: str) -> str | None:
        """Find a control token that the text does not spell (its spelling was marked or folded)."""
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            content = self._control.get(token_id)
            if content is None or content in text[start:end] or token_id in self._unknown_ids:
                continue
            return content
        return None

    def _encoding(self, inner: tokenizers.Tokenizer, text: str) -> tokenizers.Encoding:
        try:
            return inner.encode(text, add_special_tokens=False)
        except TypeError as error:  # command lines may hand over half of a surrogate pair
            raise RequestError("the text holds half a surrogate pair, not Unicode") from error

    def _find_opening(self) -> list[int]:
        """Return the ids that the post-processor puts before a text."""
        probe: Sequence[int] = self._inner.encode("a", add_special_tokens=False).ids
        full: list[int] = self._inner.encode("a", add_special_tokens=True).ids
        for start in range(len(full)):
            if full[start : start + len(probe)] == probe:
                return full[:start]
        return []


def _is_control(token: tokenizers.AddedToken) -> bool:
    is_meant = token.special or _WRITTEN_AS_CONTROL.fullmatch(token.content) is not None
    return is_meant and len(token.content.strip()) > 1
