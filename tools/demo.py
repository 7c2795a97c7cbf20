"""The whole way on one small model: fetch, export to int4, stream an answer, measure.

In: an optional prompt. Out: the answer as it is written, then a table of plain and speculative
decoding over the same tokens, measured in turns in this one process. The fetched file and the
bundle stay in the cache folder, so a second run starts to answer at once.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from export.fetch import fetch
from export.progress import Progress
from export.recipes import find_recipe
from runtime import Engine
from runtime.bundle import open_bundle
from runtime.engine import Completion
from runtime.errors import BundleError, ForerunError
from runtime.storage import cache_folder

RECIPE = "smollm2-135m-instruct"
PROMPT = "Write a Python function that adds two numbers, then one that subtracts them."
MAX_TOKENS = 128
TURNS = 3
INTERRUPTED = 130


@dataclass(frozen=True)
class Measured:
    """Answers to one prompt, decoded plainly and speculatively in turns."""

    plain: tuple[Completion, ...]
    speculative: tuple[Completion, ...]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="./tools/demo", description="Fetch, export, answer and measure one small model."
    )
    parser.add_argument("prompt", nargs="?", default=PROMPT, help="what to ask")
    options = parser.parse_args(arguments)
    try:
        run_demo(options.prompt)
    except ForerunError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except subprocess.CalledProcessError as error:
        return INTERRUPTED if error.returncode < 0 else error.returncode
    except KeyboardInterrupt:
        print("\ninterrupted: run again to go on", file=sys.stderr)
        return INTERRUPTED
    return 0


def run_demo(prompt: str) -> None:
    """Bring the bundle about, answer `prompt`, and print the table."""
    bundle = make_bundle()
    with Engine.open(bundle) as engine:
        print(f"\n> {prompt}\n")
        first_token_s = stream_answer(engine, prompt)
        print(f"\n{render_table(measure(engine, prompt), first_token_s)}")


def make_bundle() -> Path:
    """Return the demo's bundle, exporting it if the cache folder holds no sound one."""
    bundle = cache_folder() / "bundles" / f"{RECIPE}-int4"
    try:
        open_bundle(bundle)
    except BundleError:
        fetch(find_recipe(RECIPE), progress=Progress())
        command = ["--target", RECIPE, "--output", str(bundle), "--overwrite"]
        # A process of its own: torch's memory and threads are gone before the first token.
        subprocess.run([sys.executable, "-m", "export", *command], check=True, stdout=sys.stderr)
    return bundle


def stream_answer(engine: Engine, prompt: str) -> float | None:
    """Print the answer as it comes; return the time to its first token in seconds."""
    chunk = None
    for chunk in engine.generate(messages=make_messages(prompt), max_tokens=MAX_TOKENS):
        print(chunk.text, end="", flush=True)
    print()
    return chunk.stats.time_to_first_token_s if chunk else None


def measure(engine: Engine, prompt: str) -> Measured:
    """Answer `prompt` in turns, plainly and speculatively, both greedily and to the same length."""
    plain, speculative = [], []
    for _ in range(TURNS):
        plain.append(answer(engine, prompt, speculate="off"))
        speculative.append(answer(engine, prompt, speculate="auto"))
    return Measured(tuple(plain), tuple(speculative))


def answer(engine: Engine, prompt: str, *, speculate: str) -> Completion:
    """Return the whole greedy answer to `prompt`."""
    messages = make_messages(prompt)
    return engine.complete(messages=messages, max_tokens=MAX_TOKENS, speculate=speculate)


def make_messages(prompt: str) -> list[dict[str, object]]:
    """Return the chat that holds `prompt` alone."""
    return [{"role": "user", "content": prompt}]


def render_table(measured: Measured, first_token_s: float | None) -> str:
    """Return the table that compares both ways, with what it was measured on below it."""
    plain, speculative = measured.plain[0], measured.speculative[0]
    rates = decode_rate(measured.plain), decode_rate(measured.speculative)
    lengths = plain.stats.mean_accepted_length, speculative.stats.mean_accepted_length
    rows = [
        f"{'':<24}{'plain':>10}{'speculative':>14}",
        f"{'tokens per second':<24}{number(rates[0], 1):>10}{number(rates[1], 1):>14}",
        f"{'mean accepted length':<24}{number(lengths[0], 2):>10}{number(lengths[1], 2):>14}",
        f"{'time to first token':<24}{number(first_token_s, 3) + ' s':>24}",
        "",
        f"{compare_tokens(plain.token_ids, speculative.token_ids)}, greedy; the median of {TURNS} "
        f"turns each on onnxruntime {version('onnxruntime')}",
    ]
    if rates[0] and rates[1]:
        rows.append(f"speculative decoding ran at {rates[1] / rates[0]:.2f} times plain decoding")
    return "\n".join(rows)


def decode_rate(completions: Sequence[Completion]) -> float | None:
    """Return the median of the tokens per second after the first token; None for one token."""
    rates = [completion.stats.decode_tokens_per_s for completion in completions]
    return statistics.median(known) if (known := [rate for rate in rates if rate]) else None


def compare_tokens(plain: Sequence[int], speculative: Sequence[int]) -> str:
    """Say whether both ways emitted the same tokens, or where they parted."""
    if tuple(plain) == tuple(speculative):
        return f"the same {len(plain)} tokens both ways"
    pairs = enumerate(zip(plain, speculative, strict=False))
    parted = next((place for place, (a, b) in pairs if a != b), min(len(plain), len(speculative)))
    return f"NOT the same tokens: they part at token {parted + 1} of {len(plain)}"


def number(value: float | None, digits: int) -> str:
    """Return `value` with `digits` decimals, or n/a."""
    return "n/a" if value is None else f"{value:.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
