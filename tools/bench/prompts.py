"""Prompts of a run: questions as token ids, encoded once for every engine alike.

In: questions and a bundle, whose tokenizer and chat template encode them. Out: `Prompt`s. The
second turn of a question needs an answer to the first: plain decoding's own, made once and untimed.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.bundle import Bundle
from runtime.template import ChatTemplate
from runtime.tokenizer import Tokenizer
from tools.errors import ToolError
from tools.prompt_sets import Question


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """One prompt: `name` is the question's id, with its turn from the second on."""

    name: str
    category: str
    ids: tuple[int, ...]


class Encoder:
    """Encodes questions as the bundle's chat, or as plain text where it has no template."""

    def __init__(self, bundle: Bundle) -> None:
        words = bundle.manifest.tokenizer
        self._tokenizer = Tokenizer.load(bundle.tokenizer)
        self._room = bundle.manifest.target.context
        source = bundle.chat_template()
        self._template = None
        if source is not None:
            self._template = ChatTemplate(
                source, bos_token=words.bos_token, eos_token=words.eos_token
            )

    def turns(self, question: Question) -> int:
        """Return how many turns of the question can be asked: one without a chat template."""
        return len(question.turns) if self._template else 1

    def encode(
        self, question: Question, answers: Sequence[Sequence[int]], *, max_tokens: int
    ) -> Prompt | None:
        """Return the prompt of the turn after `answers`, or None if it does not fit the context."""
        turn = len(answers)
        if self._template is None:
            ids = self._tokenizer.encode(question.turns[turn], add_special=True)
        else:
            messages = []
            for i, text in enumerate(question.turns[: turn + 1]):
                messages.append({"role": "user", "content": text})
                if i < turn:
                    said = self._tokenizer.decode(list(answers[i]))
                    messages.append({"role": "assistant", "content": said})
            ids = self._template.encode(messages, self._tokenizer)
        if len(ids) + max_tokens > self._room:
            return None
        name = f"{question.question_id}" if turn == 0 else f"{question.question_id}.{turn + 1}"
        return Prompt(name=name, category=question.category, ids=tuple(ids))


def hash_prompts(prompts: Sequence[Prompt]) -> str:
    """Return one hash of all ids, by which two runs are known to have asked the same."""
    if not prompts:
        raise ToolError("no prompt fits the model's context: give shorter ones with --prompts")
    text = repr([(prompt.name, prompt.ids) for prompt in prompts])
    return hashlib.sha256(text.encode()).hexdigest()
