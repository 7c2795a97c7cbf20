"""Prompts without end, put together from the phrases beside this file.

In: a seed. Out: prompts of all categories in turn, never one of `tools/prompts`, which stay unseen
so that what is measured on them counts. The same seed gives the same prompts everywhere.
"""

import random
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FILE = Path(__file__).with_suffix(".toml")
_SLOT = re.compile(r"\{(?:(\d+)-(\d+)|([a-z_]+))\}")


def make_prompts(seed: int) -> Iterator[tuple[str, str]]:
    """Yield `(category, text)` for ever."""
    phrases = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    templates: Mapping[str, Sequence[str]] = phrases["prompts"]
    chance = random.Random(seed)
    while True:
        for category, own in templates.items():
            yield category, _fill(chance.choice(own), phrases["words"], chance)


def _fill(text: str, words: Mapping[str, Sequence[str]], chance: random.Random) -> str:
    def choose(slot: re.Match[str]) -> str:
        low, high, name = slot.groups()
        if name is None:
            return str(chance.randint(int(low), int(high)))
        return _fill(chance.choice(words[name]), words, chance)

    return _SLOT.sub(choose, text)
