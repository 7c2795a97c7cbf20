"""Prompt sets: what our own holds, what a user's file may look like, what a bad line is told."""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from runtime.errors import ForerunError
from tools.errors import ToolError
from tools.prompt_sets import CATEGORIES, PROMPTS, Question, read_questions

GOOD = '{"question_id": 1, "category": "chat", "turns": ["Hello"]}'


def write(folder: Path, *lines: str) -> Path:
    file = folder / "mine.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8")
    return file


def line(name: object, category: str) -> str:
    return json.dumps({"question_id": name, "category": category, "turns": ["Hello"]})


def test_each_category_has_its_file_with_a_dozen_questions_and_two_of_two_turns() -> None:
    questions = read_questions()
    counts = Counter(question.category for question in questions)
    two_turns = Counter(q.category for q in questions if len(q.turns) == 2)
    assert {file.stem for file in PROMPTS.iterdir()} == set(CATEGORIES) == set(counts)
    assert min(counts.values()) >= 12
    assert all(two_turns[category] >= 2 for category in CATEGORIES)


def test_each_of_our_lines_has_exactly_the_keys_of_the_form_and_lies_in_its_file() -> None:
    for file in PROMPTS.iterdir():
        rows = [json.loads(text) for text in file.read_text(encoding="utf-8").splitlines()]
        assert all(list(row) == ["question_id", "category", "turns"] for row in rows)
        assert {row["category"] for row in rows} == {file.stem}


def test_no_text_of_ours_occurs_twice() -> None:
    texts = [turn for question in read_questions() for turn in question.turns]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("category", ["summarising", "question_answering"])
def test_our_passages_have_80_to_200_words(category: str) -> None:
    for question in read_questions(categories=[category]):
        passage = max(question.turns[0].split("\n\n"), key=len)
        assert 80 <= len(passage.split()) <= 200, question.question_id


def test_our_code_to_edit_has_15_to_40_lines() -> None:
    for question in read_questions(categories=["code_editing"]):
        (code,) = re.findall(r"```\w+\n(.*?)\n```", question.turns[0], flags=re.DOTALL)
        assert 15 <= len(code.splitlines()) <= 40, question.question_id


def test_our_python_to_edit_is_python() -> None:
    for question in read_questions(categories=["code_editing"]):
        for code in re.findall(r"```python\n(.*?)```", question.turns[0], flags=re.DOTALL):
            compile(code, str(question.question_id), "exec")


def test_a_question_is_frozen(tmp_path: Path) -> None:
    (question,) = read_questions(write(tmp_path, GOOD))
    assert question == Question(1, "chat", ("Hello",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        question.category = "code"  # type: ignore[misc]


def test_a_line_without_category_is_uncategorised(tmp_path: Path) -> None:
    file = write(tmp_path, '{"question_id": "a/1", "turns": ["Hello", "Again"]}')
    expected = [Question("a/1", "uncategorised", ("Hello", "Again"))]
    assert read_questions(file) == expected
    assert read_questions(file, categories=["uncategorised"]) == expected


def test_further_keys_are_left_unread(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD[:-1] + ', "reference": ["Hi"], "source": null}')
    assert read_questions(file) == [Question(1, "chat", ("Hello",))]


def test_blank_lines_windows_lines_a_mark_and_line_separators_are_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    second = '{"question_id": 2, "turns": ["one\u2028two"]}'
    file.write_bytes(f"\ufeff{GOOD}\r\n\r\n{second}\r\n".encode())
    assert [question.turns for question in read_questions(file)] == [("Hello",), ("one\u2028two",)]


def test_without_a_limit_the_order_is_the_files(tmp_path: Path) -> None:
    file = write(tmp_path, line(5, "b"), line(3, "b"), line(4, "a"))
    assert [question.question_id for question in read_questions(file)] == [5, 3, 4]


def test_a_limit_takes_evenly_until_a_category_is_used_up(tmp_path: Path) -> None:
    names = {"b": "1234", "a": "5", "c": "67"}
    file = write(tmp_path, *(line(int(n), c) for c, numbers in names.items() for n in numbers))
    taken = [question.question_id for question in read_questions(file, limit=6)]
    assert taken == [1, 5, 6, 2, 7, 3]
    assert len(read_questions(file, limit=100)) == 7


def test_a_limit_counts_after_the_categories_were_chosen() -> None:
    taken = read_questions(categories=["translation", "chat"], limit=5)
    assert Counter(question.category for question in taken) == {"chat": 3, "translation": 2}


def test_an_unknown_category_lists_the_known_ones(tmp_path: Path) -> None:
    file = write(tmp_path, line(1, "writing"), line(2, "qa"))
    with pytest.raises(ToolError, match=r"^unknown category 'chat'; the set has: writing, qa$"):
        read_questions(file, categories=["qa", "chat"])


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ToolError, match=f"limit must be at least 1, not {limit}"):
        read_questions(limit=limit)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ('{"question_id": 2,', r"not JSON \(.*\); expected one object on each line"),
        ("[" * 100_000, r"not JSON \(.*\); expected one object on each line"),
        ('["Hello"]', "expected a JSON object, found list"),
        ('{"turns": ["Hello"]}', "question_id must be a whole number or a text, not None"),
        ('{"question_id": true, "turns": ["Hello"]}', "question_id must be .*, not True"),
        ('{"question_id": 2, "category": 7, "turns": ["a"]}', "category must be .*, not 7"),
        ('{"question_id": 2, "category": "", "turns": ["a"]}', "category must be .*, not ''"),
        ('{"question_id": 2}', r'turns must be a list of texts, such as \["Hello"\]'),
        ('{"question_id": 2, "turns": "Hello"}', "turns must be a list of texts"),
        ('{"question_id": 2, "turns": []}', "turns must be a list of texts"),
        ('{"question_id": 2, "turns": ["a", " "]}', "turn 2 must be a text that is not blank"),
        ('{"question_id": 2, "turns": [3]}', "turn 1 must be a text that is not blank"),
    ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, bad: str, told: str) -> None:
    file = write(tmp_path, GOOD, "", bad)
    with pytest.raises(ToolError, match=f"^{re.escape(str(file))}, line 3: {told}"):
        read_questions(file)


def test_a_question_id_may_occur_once(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD, GOOD)
    place = re.escape(str(file))
    with pytest.raises(ToolError, match=f"^{place}, line 2: .* is taken by {place}, line 1$"):
        read_questions(file)


def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(GOOD.encode() + b'\n{"question_id": 2, "turns": ["\xe9"]}')
    with pytest.raises(ToolError, match="line 2: not UTF-8 text"):
        read_questions(file)


def test_a_file_without_a_question_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"mine\.jsonl, line 1: expected a question on each line"):
        read_questions(write(tmp_path, "", " "))


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"cannot read the prompts in .*gone\.jsonl: No such file"):
        read_questions(tmp_path / "gone.jsonl")
    with pytest.raises(ToolError, match=f"cannot read the prompts in {re.escape(str(tmp_path))}: "):
        read_questions(tmp_path)


def test_a_tool_error_is_a_forerun_error_about_the_request() -> None:
    assert issubclass(ToolError, ForerunError)
    assert ToolError.exit_code == 2
