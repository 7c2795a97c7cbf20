"""The benchmark's side of a worker: one process that holds one engine.

A worker that is not on its turn is stopped, so that threads of its that go on spinning cannot
take the cores from the one that is. Its standard error goes to a file, whose end explains a crash.
"""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tools.errors import ToolError

from .wire import Answer, Failure, Hello, Job, Message, decode, encode

ROOT = Path(__file__).parents[2]
_CAN_STOP = hasattr(signal, "SIGSTOP")
_PATIENCE_S = 10


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a worker: which interpreter runs which module with which arguments."""

    name: str
    python: str
    module: str
    arguments: tuple[str, ...]
    threads: int
    variables: Mapping[str, str] = field(default_factory=dict)


class WorkerError(ToolError):
    """A worker could not do its job; the text says why."""


class Worker:
    """A running worker; it is ready, and stopped, when the constructor returns.

    Raises:
        WorkerError: it does not start or cannot load its engine.
    """

    def __init__(self, launch: Launch) -> None:
        self.name = launch.name
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        try:
            self._process = subprocess.Popen(
                [launch.python, "-P", "-m", launch.module, *launch.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                encoding="utf-8",
                env=_environment(launch),
                # Ctrl-C is for the benchmark alone, which then ends its workers.
                process_group=0 if os.name == "posix" else None,
            )
        except OSError as error:
            self._log.close()
            raise WorkerError(f"{launch.name} does not start: {error}") from error
        try:
            hello = self._receive()
        except BaseException:
            self.close()
            raise
        assert isinstance(hello, Hello)
        self.hello = hello
        self._signal("SIGSTOP")

    def ask(self, job: Job) -> Answer:
        """Return the worker's answer to the job.

        Raises:
            WorkerError: the engine failed or the process ended.
        """
        self._signal("SIGCONT")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(encode(job))
            self._process.stdin.flush()
        except OSError:
            raise WorkerError(self._last_words()) from None
        answer = self._receive()
        self._signal("SIGSTOP")
        assert isinstance(answer, Answer)
        return answer

    def close(self) -> None:
        """End the process; closing twice is harmless."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(_PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout, self._log):
            if pipe is not None:
                with suppress(OSError):  # what was not sent yet needs no reader any more
                    pipe.close()

    def _receive(self) -> Message:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(self._last_words())
        message = decode(line)
        if isinstance(message, Failure):
            raise WorkerError(message.reason)
        return message

    def _last_words(self) -> str:
        code = self._process.wait(_PATIENCE_S)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        words = lines[-1].strip() if lines else "it said nothing"
        how = f"was killed by signal {-code}" if code < 0 else f"ended with status {code}"
        return f"the process of {self.name} {how}: {words}"

    def _signal(self, name: str) -> None:
        if _CAN_STOP and self._process.poll() is None:
            self._process.send_signal(getattr(signal, name))


def _environment(launch: Launch) -> dict[str, str]:
    counts = dict.fromkeys(_THREAD_VARIABLES, str(launch.threads))
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, "PYTHONPATH": str(ROOT), **counts, **offline, **launch.variables}


# Libraries that take their number of threads from the environment agree with the rest.
_THREAD_VARIABLES: Sequence[str] = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
