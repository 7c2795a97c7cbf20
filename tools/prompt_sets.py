"""Sets of prompts: our own, in `tools/prompts/`, or a file of the user's.

In: JSON Lines in the form of Spec-Bench, one object a line: `question_id`, `category`, `turns`.
Further keys (such as `reference`) are left unread, blank lines skipped, and a line without
`category` counts as `uncategorised`. Out: frozen questions.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from runtime import Engine, PromptTooLongError

from .errors import ToolError

PROMPTS = Path(__file__).parent / "prompts"
# The files of our own set, in the order in which they are read.
CATEGORIES = (
    "chat",
    "code",
    "code_editing",
    "arithmetic",
    "translation",
    "summarising",
    "question_answering",
)
UNCATEGORISED = "uncategorised"


@dataclass(frozen=True)
class Question:
    """One conversation to run: what the user says, turn after turn."""

    question_id: int | str
    category: str
    turns: tuple[str, ...]


def read_questions(
    path: Path | None = None, *, categories: Sequence[str] = (), limit: int | None = None
) -> list[Question]:
    """Return the questions of `path`, or our own.

    Args:
        path: a JSON Lines file in the form of Spec-Bench; None reads our own set.
        categories: keep only these, in the set's order; empty keeps all.
        limit: how many questions at most, dealt out evenly: the first of every category, then the
            second of every category, and so on. None keeps all, in the set's order.

    Raises:
        ToolError: a file cannot be read or a line is not a question (the text names file and
            line), a category is not in the set (it lists those that are), or limit is below 1.
    """
    if limit is not None and limit < 1:
        raise ToolError(
            f"limit must be at least 1, not {limit}; leave it out to take all questions"
        )
    files = [path] if path is not None else [PROMPTS / f"{name}.jsonl" for name in CATEGORIES]
    questions = keep_categories(read_files(files), categories)
    return questions if limit is None else deal_out(questions)[:limit]


def encode_fitting(
    engine: Engine, questions: Sequence[Question]
) -> list[tuple[Question, list[int]]]:
    """Return the questions whose first turn fits the engine's context, with its token ids.

    The chat template is applied where there is one.

    Raises:
        ToolError: none fits.
    """
    fitting = []
    for question in questions:
        text = question.turns[0]
        try:
            ids = (
                engine.encode(messages=[{"role": "user", "content": text}])
                if engine.has_chat_template
                else engine.encode(text)
            )
        except PromptTooLongError:
            continue
        fitting.append((question, ids))
    if not fitting:
        raise ToolError(
            f"no prompt fits the context of {engine.target.context} tokens: give shorter ones "
            "with --prompts"
        )
    return fitting


def keep_categories(questions: list[Question], categories: Sequence[str]) -> list[Question]:
    """Return the questions of these categories in their order; no categories means all."""
    known = list(dict.fromkeys(question.category for question in questions))
    for name in categories:
        if name not in known:
            raise ToolError(f"unknown category {name!r}; the set has: {', '.join(known)}")
    wanted = categories or known
    return [question for question in questions if question.category in wanted]


def deal_out(questions: list[Question]) -> list[Question]:
    """Return all questions, taking one of each category in turn for as long as it has any."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.category, []).append(question)
    rounds = zip_longest(*groups.values())
    return [question for dealt in rounds for question in dealt if question is not None]


def read_files(files: Sequence[Path]) -> list[Question]:
    """Return the questions of all files; a `question_id` may occur once in all of them."""
    questions: list[Question] = []
    places: dict[int | str, str] = {}
    for file in files:
        before = len(questions)
        for number, line in enumerate(read_lines(file), start=1):
            if not line.strip():
                continue
            place = f"{file}, line {number}"
            question = parse_question(line, place)
            if question.question_id in places:
                first = places[question.question_id]
                raise ToolError(
                    f"{place}: question_id {question.question_id!r} is taken by {first}"
                )
            places[question.question_id] = place
            questions.append(question)
        if len(questions) == before:
            raise ToolError(f"{file}, line 1: expected a question on each line, found none")
    return questions


def read_lines(file: Path) -> list[bytes]:
    """Return the file's lines, undecoded, so that a bad byte can be named with its line."""
    try:
        # Bytes break at CR and LF only; text would also break inside a prompt, at U+2028.
        return file.read_bytes().removeprefix(b"\xef\xbb\xbf").splitlines()
    except OSError as error:
        raise ToolError(f"cannot read the prompts in {file}: {error.strerror}") from error


def parse_question(line: bytes, place: str) -> Question:
    """Return the question on one line of JSON; errors begin with `place`."""
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ToolError(f"{place}: not UTF-8 text; save the file as UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ToolError(f"{place}: not JSON ({error}); expected one object on each line") from error
    if not isinstance(found, dict):
        raise ToolError(f"{place}: expected a JSON object, found {type(found).__name__}")
    name = found.get("question_id")
    if isinstance(name, bool) or not isinstance(name, int | str):
        raise ToolError(f"{place}: question_id must be a whole number or a text, not {name!r}")
    category = found.get("category", UNCATEGORISED)
    if not isinstance(category, str) or not category:
        raise ToolError(f"{place}: category must be a text that is not empty, not {category!r}")
    return Question(name, category, parse_turns(found.get("turns"), place))


def parse_turns(turns: object, place: str) -> tuple[str, ...]:
    """Return what the user says, at least one text and none of them blank."""
    if not isinstance(turns, list) or not turns:
        raise ToolError(f'{place}: turns must be a list of texts, such as ["Hello"]')
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            raise ToolError(f"{place}: turn {number} must be a text that is not blank")
    return tuple(turns)
