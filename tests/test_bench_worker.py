"""Workers as processes: they start, answer, fail with a reason, and stand still between turns."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from export.progress import Progress
from tools.bench.pool import Pool
from tools.bench.rows import Row
from tools.bench.wire import Job
from tools.bench.worker import Launch, Worker, WorkerError

JOB = Job(prompt_ids=(1, 2, 3), max_tokens=4)


def make_launch(*arguments: str, name: str = "fake") -> Launch:
    return Launch(
        name=name,
        python=sys.executable,
        module="tests.bench_fake",
        arguments=arguments,
        threads=1,
    )


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(make_launch())
    yield worker
    worker.close()


def test_a_worker_answers_again_and_again(worker: Worker) -> None:
    assert worker.hello.versions == {"fake": "1"}
    for _ in range(3):
        answer = worker.ask(JOB)
        assert answer.token_ids == (0, 1, 2, 3)
        assert answer.stats == {"target_passes": 4}
        assert answer.memory == {"weights": 3}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_worker_that_is_not_on_its_turn_is_stopped(worker: Worker) -> None:
    worker.ask(JOB)
    stat = Path(f"/proc/{worker._process.pid}/stat")
    for _ in range(100):
        state = stat.read_text().rpartition(")")[2].split()[0]
        if state == "T":
            break
        time.sleep(0.01)
    assert state == "T"


def test_a_failed_job_has_its_reason_and_the_worker_lives(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="ValueError: the fake was told to fail"):
        worker.ask(Job(prompt_ids=(1,), max_tokens=1, settings={"crash": True}))
    assert worker.ask(JOB).token_ids == (0, 1, 2, 3)


def test_a_process_that_ends_in_a_job_is_quoted(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="fake ended with status 7: something of note"):
        worker.ask(Job(prompt_ids=(1,), max_tokens=1, settings={"exit": True}))


def test_a_process_that_dies_at_once_is_quoted() -> None:
    with pytest.raises(WorkerError, match="fake ended with status 3: out of luck"):
        Worker(make_launch("die"))


def test_an_engine_that_does_not_load_has_its_reason() -> None:
    with pytest.raises(WorkerError, match="OSError: no such model"):
        Worker(make_launch("refuse"))


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    launch = Launch(
        name="lost", python=str(tmp_path / "python"), module="x", arguments=(), threads=1
    )
    with pytest.raises(WorkerError, match="lost does not start"):
        Worker(launch)


def test_a_closed_worker_is_gone(worker: Worker) -> None:
    process = worker._process
    worker.close()
    worker.close()
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux ends it, and shows it in /proc")
def test_a_stopped_worker_does_not_outlive_its_benchmark() -> None:
    words = (
        "from tests.test_bench_worker import make_launch\n"
        "from tools.bench.worker import Worker\n"
        "print(Worker(make_launch())._process.pid, flush=True)\n"
        "input()\n"
    )
    root = Path(__file__).parents[1]
    paths = os.pathsep.join([str(root), str(root / "tests")])
    parent = subprocess.Popen(
        [sys.executable, "-c", words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    with parent:
        assert parent.stdout is not None
        stat = Path(f"/proc/{int(parent.stdout.readline())}/stat")
        parent.kill()
    for _ in range(500):
        if not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX":
            return
        time.sleep(0.01)
    raise AssertionError("it is still there")


def test_a_worker_that_fails_leaves_the_others_alone() -> None:
    launches = [make_launch("refuse", name="bad"), make_launch(name="good")]
    with Pool(launches, progress=Progress(quiet=True)) as pool:
        assert list(pool.hellos) == ["good"]
        with pytest.raises(WorkerError, match="no such model"):
            pool.ask(Row(name="b", worker="bad"), JOB)
        assert pool.ask(Row(name="g", worker="good"), JOB).token_ids == (0, 1, 2, 3)
