"""All workers of a run: started once, asked in turns, ended together.

In: launches by name. Out: answers. A worker that fails takes its rows out of the run, no more.
"""

from collections.abc import Iterable
from types import TracebackType

from export.progress import Progress

from .rows import Row
from .wire import Answer, Hello, Job
from .worker import Launch, Worker, WorkerError


class Pool:
    """Running workers by name; use it in a `with` block, which ends them."""

    def __init__(self, launches: Iterable[Launch], *, progress: Progress) -> None:
        self._workers: dict[str, Worker] = {}
        self._failed: dict[str, WorkerError] = {}
        try:
            for launch in launches:
                with progress.stage(f"loading {launch.name}"):
                    self._start(launch)
        except BaseException:
            self.close()
            raise

    @property
    def hellos(self) -> dict[str, Hello]:
        """What each running worker said of itself."""
        return {name: worker.hello for name, worker in self._workers.items()}

    def ask(self, row: Row, job: Job) -> Answer:
        """Return the answer of the row's worker.

        Raises:
            WorkerError: it did not start, or fails now.
        """
        if row.worker in self._failed:
            raise self._failed[row.worker]
        if row.worker not in self._workers:
            raise WorkerError(f"no process of {row.worker} was started")
        return self._workers[row.worker].ask(job)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers.values():
            worker.close()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _start(self, launch: Launch) -> None:
        try:
            self._workers[launch.name] = Worker(launch)
        except WorkerError as error:
            self._failed[launch.name] = error
