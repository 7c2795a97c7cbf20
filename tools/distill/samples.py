"""Texts with the target's laws at the places that are judged, and their file.

In: samples. Out: a safetensors file that is there whole or not at all, and samples again. Arrays of
a file: `tokens` of all samples one after another, `ends`, `starts`, `temperatures` by sample, and
`ids` and `log_probs` of all judged places; categories stand in its head.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from export.bundle import writing
from tools.errors import ToolError

from .laws import TopLaws

GIVEN = -1.0  # the temperature of a text that the target did not write


@dataclass(frozen=True)
class Sample:
    """One text.

    Attributes:
        tokens: prompt and answer; `[n]` int32.
        start: the first token that is judged, at least 1: `laws` has a row for it and for each one
            after it, `n − start` in all.
        laws: the target's laws at these places.
        temperature: at which the answer was drawn, or `GIVEN`.
        category: the kind of prompt.
    """

    tokens: NDArray[np.int32]
    start: int
    laws: TopLaws
    temperature: float
    category: str


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write the file.

    Raises:
        PublishError: it cannot be written; nothing of it is left then.
    """
    laws = TopLaws.join([sample.laws for sample in samples])
    is_small = laws.ids.max(initial=0) < 1 << 16
    arrays = {
        "tokens": np.concatenate([sample.tokens for sample in samples]),
        "ends": np.cumsum([len(sample.tokens) for sample in samples]),
        "starts": np.array([sample.start for sample in samples], np.int32),
        "temperatures": np.array([sample.temperature for sample in samples], np.float32),
        "ids": laws.ids.astype(np.uint16) if is_small else laws.ids,
        "log_probs": laws.log_probs,
    }
    names = json.dumps([sample.category for sample in samples])
    partial = path.with_name(f".{path.name}.partial")
    try:
        with writing(path):
            try:
                save_file(arrays, partial, metadata={"categories": names})
            except SafetensorError as error:  # it names the system's error in words alone
                found = re.search(r"os error (\d+)", str(error))
                raise OSError(int(found[1]) if found else 0, str(error)) from None
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_samples(path: Path) -> list[Sample]:
    """Return the samples of a file.

    Raises:
        ToolError: it is damaged.
    """
    try:
        with safe_open(path, "np") as file:
            arrays: dict[str, Any] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            names = json.loads((file.metadata() or {})["categories"])
        return _cut(arrays, names)
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        raise ToolError(
            f"{path} is damaged ({str(error) or type(error).__name__}): remove it, and it is "
            "written again"
        ) from None


def count_judged(path: Path) -> int:
    """Return how many tokens of a file have a law, from its head alone.

    Raises:
        ToolError: it is damaged.
    """
    try:
        with safe_open(path, "np") as file:
            return int(file.get_slice("ids").get_shape()[0])
    except (OSError, SafetensorError) as error:
        raise ToolError(
            f"{path} is damaged ({error}): remove it, and it is written again"
        ) from None


def _cut(arrays: dict[str, Any], names: Sequence[str]) -> list[Sample]:
    samples, end, place = [], 0, 0
    for index, name in enumerate(names):
        start, begin, end = int(arrays["starts"][index]), end, int(arrays["ends"][index])
        rows = slice(place, place + end - begin - start)
        place = rows.stop
        laws = TopLaws(arrays["ids"][rows], arrays["log_probs"][rows])
        tokens = arrays["tokens"][begin:end]
        if not 1 <= start < len(tokens) or len(laws) != len(tokens) - start:
            raise ValueError("its arrays do not fit each other")
        samples.append(Sample(tokens, start, laws, float(arrays["temperatures"][index]), str(name)))
    return samples
