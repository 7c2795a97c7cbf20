"""The target at work: a bundle whose graph holds several sequences, opened to write samples.

In: a bundle of the portable flavour. Out: `Writer`, which encodes prompts and makes samples.
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from runtime.batch import BatchModel
from runtime.bundle import Bundle, open_bundle
from runtime.columns import read_token_ids
from runtime.providers import Threads, count_threads, make_provider
from runtime.session import Session
from runtime.template import ChatTemplate
from runtime.tokenizer import Tokenizer
from tools.errors import ToolError

from .reading import judge_texts
from .samples import Sample
from .source import LONGEST_PROMPT, PIECE_TOKENS, Item, Source, fill_up
from .writing import TEMPERATURES, write_answers

_HELD_ANSWER = 64
_ANSWERS = 2  # as long as they may be, to each prompt to train on


class Writer:
    """An opened target. Made by `Writer.open`.

    Attributes:
        fingerprint: of the tokenizer.
        digest: of the bundle's files: which words these are.
    """

    def __init__(self, model: BatchModel, bundle: Bundle, source: Source) -> None:
        words = bundle.manifest.tokenizer
        self.fingerprint = words.fingerprint
        names = [f"{file.path} {file.sha256}" for file in bundle.manifest.files]
        self.digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
        self._model = model
        self._source = source
        self._tokenizer = Tokenizer.load(bundle.tokenizer)
        self._end_ids = frozenset(bundle.manifest.end_ids)
        template = bundle.chat_template()
        self._template = template and ChatTemplate(
            template, bos_token=words.bos_token, eos_token=words.eos_token
        )

    @classmethod
    def open(
        cls, path: Path, source: Source, *, threads: int | None = None, provider: str = "cpu"
    ) -> "Writer":
        """Open the target of a bundle.

        Raises:
            BundleError: it cannot be opened, or holds one sequence only.
            ToolError: its context is too short.
        """
        bundle = open_bundle(path)
        entry = bundle.manifest.target
        needed = max(PIECE_TOKENS, LONGEST_PROMPT + source.answer_tokens)
        if entry.context < needed:
            raise ToolError(
                f"{path} holds {entry.context} tokens of context, but {needed} are needed: export "
                "it with a larger --context, or shorten --answer-tokens"
            )
        session = Session(
            bundle.graph(entry),
            provider=make_provider(provider),
            threads=Threads(count=count_threads(threads)),
        )
        model = BatchModel(
            session,
            entry,
            sequences=source.batch,
            vocabulary=bundle.manifest.tokenizer.vocabulary,
            token_ids=read_token_ids(bundle, entry),
        )
        return cls(model, bundle, source)

    def encode_question(self, text: str) -> list[int]:
        """Return the ids of a prompt that asks `text`, by the chat template if there is one."""
        if self._template:
            return self._template.encode([{"role": "user", "content": text}], self._tokenizer)
        return self._tokenizer.encode(text, add_special=True)

    def encode_text(self, text: str) -> list[int]:
        """Return the ids of plain text."""
        return self._tokenizer.encode(text, allow_special=False)

    @property
    def opening(self) -> Sequence[int]:
        """What a text begins with."""
        return self._tokenizer.encode("", add_special=True)

    def make_samples(
        self,
        items: Sequence[Item],
        *,
        seed: Sequence[int],
        is_held_out: bool = False,
        on_tokens: Callable[[int], None] = lambda _: None,
    ) -> list[Sample]:
        """Return a batch's samples: answers to its prompts, or its texts with their laws.

        Held-out prompts get one short answer at each temperature.
        """
        source = self._source
        if source.texts:
            return judge_texts(self._model, items, top=source.top, on_tokens=on_tokens)
        longest, answers = source.answer_tokens, _ANSWERS
        if is_held_out:
            longest, answers = min(longest, _HELD_ANSWER), len(TEMPERATURES)
        return write_answers(
            self._model,
            fill_up(items, source.batch),
            steps=longest * answers,
            answer_tokens=longest,
            end_ids=self._end_ids,
            top=source.top,
            seed=[source.seed, *seed],
            on_tokens=on_tokens,
        )
