"""What a run measured, as it lies in the JSON file; everything else follows from it.

Out: `Record`, written and read here. `result.schema.json` beside this file documents the format.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.errors import ToolError

from .prompts import Prompt
from .rows import Row
from .turns import Sample
from .wire import Hello, make_answer

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run.

    Attributes:
        header: command, machine, bundle, method and settings.
        workers: what each process said of itself.
        rows: in the order of the table.
        prompts: of the main measurement.
        failed: reasons of rows that did not run, or not to the end, by row.
        over: rows that all others are compared with.
        samples: every answer; those of a sweep carry their point, such as `prompt=256`.
        widths: seconds of single passes over m tokens, by model and m.
        complete: whether nothing was cut short.
    """

    header: Mapping[str, Any]
    workers: Mapping[str, Hello]
    rows: tuple[Row, ...]
    prompts: tuple[Prompt, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    over: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()
    widths: Mapping[str, Mapping[str, list[float]]] = field(default_factory=dict)
    complete: bool = True

    def main(self) -> "Record":
        """Return the record with the samples of the main measurement alone."""
        return replace(self, samples=tuple(s for s in self.samples if s.point == ""))


def write_record(record: Record, summary: Mapping[str, Any], path: Path) -> None:
    """Write the record with its summary; an older file stays until the new one is whole."""
    fields = {"format_version": FORMAT_VERSION, "summary": summary, **asdict(record)}
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(fields, ensure_ascii=False) + "\n", encoding="utf-8")
    partial.replace(path)


def read_record(path: Path) -> Record:
    """Read a record.

    Raises:
        ToolError: the file cannot be read or is no record of this format.
    """
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ToolError(f"cannot read {path}: {error}") from error
    if not isinstance(fields, dict) or fields.get("format_version") != FORMAT_VERSION:
        raise ToolError(
            f"{path} is no result of the benchmark in format {FORMAT_VERSION}: measure again"
        )
    try:
        return Record(
            header=fields["header"],
            workers={name: Hello(**hello) for name, hello in fields["workers"].items()},
            rows=tuple(Row(**row) for row in fields["rows"]),
            prompts=tuple(make_prompt(prompt) for prompt in fields["prompts"]),
            failed=fields["failed"],
            over=tuple(fields["over"]),
            samples=tuple(make_sample(sample) for sample in fields["samples"]),
            widths=fields["widths"],
            complete=fields["complete"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ToolError(f"{path} is damaged: {error!r} where a result was expected") from error


def make_prompt(fields: Mapping[str, Any]) -> Prompt:
    """Return the prompt that JSON has turned into an object."""
    return Prompt(**{**fields, "ids": tuple(fields["ids"])})


def make_sample(fields: Mapping[str, Any]) -> Sample:
    """Return the sample that JSON has turned into an object."""
    return Sample(**{**fields, "answer": make_answer(fields["answer"])})
