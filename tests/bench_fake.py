"""A worker of the benchmark with a fake engine: bursts come by the clock that the settings spell.

`python -m tests.bench_fake [die|refuse]`. A job's settings may hold `bursts`: (seconds, tokens)
one after the other; without them every token of the budget comes by itself.
"""

import sys
from collections.abc import Sequence
from typing import Any

from tools.bench.serve import Emit, serve
from tools.bench.wire import Hello, Job


class FakeClock:
    """A clock that only the fake engine moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """Emits bursts of tokens after known delays."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.resets = 0

    def describe(self) -> Hello:
        return Hello(versions={"fake": "1"}, threads=1, load_s=0.0)

    def reset(self) -> None:
        self.resets += 1
        self.clock.now += 5.0  # must not be measured

    def run(self, job: Job, emit: Emit) -> dict[str, Any]:
        if "crash" in job.settings:
            raise ValueError("the fake was told to fail\nand says more")
        if "exit" in job.settings:
            sys.stderr.write("something of note")
            sys.exit(7)
        sys.stdout.write("a library prints to standard output\n")
        token = int(job.settings.get("first_id", 0))
        bursts: Sequence[Any] = job.settings.get("bursts", [(0.1, 1)] * job.max_tokens)
        for delay, count in bursts:
            self.clock.now += delay
            emit(range(token, token + count), shows_text=count > 0)
            token += count
        return {"target_passes": len(bursts)}

    def memory(self) -> dict[str, int]:
        return {"weights": 3}


def main() -> int:
    clock = FakeClock()

    def make_engine() -> FakeEngine:
        if "refuse" in sys.argv:
            raise OSError("no such model")
        return FakeEngine(clock)

    if "die" in sys.argv:
        sys.stderr.write("out of luck")
        return 3
    return serve(make_engine, clock=clock)


if __name__ == "__main__":
    sys.exit(main())
