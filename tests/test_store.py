"""The store of past answers: what it keeps, whom it lets read, and what a crash cannot do to it."""

import json
import multiprocessing
import stat
from pathlib import Path

import pytest
from tiny_bundle import make_bundle

from runtime import Engine, StoreError
from runtime import store as store_module
from runtime.__main__ import main
from runtime.lock import hold_lock
from runtime.store import Store, read_store

FINGERPRINT = "ab" * 32
LINE = b"forerun store 1 " + FINGERPRINT.encode() + b"\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "past.store"


def open_store(path: Path, *, fingerprint: str = FINGERPRINT, vocabulary: int = 10**6) -> Store:
    return Store(path, fingerprint=fingerprint, vocabulary=vocabulary)


def stored(path: Path) -> list[list[int]]:
    records = read_store(path).records
    return [list(memoryview(record).cast("i")) for record in records]


# --- what it keeps --------------------------------------------------------------------------------


def test_a_store_outlives_its_process(path: Path) -> None:
    store = open_store(path)
    store.add([5, 6, 7, 8])
    store.add([9, 10, 11, 12, 13])
    assert stored(path) == [[5, 6, 7, 8], [9, 10, 11, 12, 13]]
    for archive in (store.archive, open_store(path).archive):
        assert archive.recall([9, 10, 11], 4, beyond=0) == ([12, 13], 3)
        assert archive.recall([5, 6, 7], 4, beyond=0) == ([8], 3)


def test_a_conversation_is_not_stored_again_with_each_turn(path: Path) -> None:
    store = open_store(path)
    store.add(list(range(100)))
    store.add(list(range(120)))
    store.add(list(range(120)))
    assert stored(path) == [list(range(100)), list(range(96, 120))]
    assert open_store(path).archive.recall([97, 98, 99], 3, beyond=0) == ([100, 101, 102], 3)


def test_only_its_owner_may_read_it(path: Path) -> None:
    open_store(path).add([1, 2, 3])
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    path.chmod(0o644)
    open_store(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_stays_below_its_limit_and_keeps_the_newest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MOST_BYTES", 4000)
    store = open_store(path)
    for number in range(300):
        store.add([number, *range(10_000 + 30 * number, 10_020 + 30 * number)])
        assert path.stat().st_size <= 4000 + len(LINE)
        assert stored(path)[-1][0] == number
        assert len(stored(path)) >= min(number + 1, 20)
    store.add(list(range(5000)))
    assert stored(path) == [list(range(4500, 5000))]


def test_an_empty_file_is_a_new_store(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    open_store(path).add([1, 2, 3])
    assert stored(path) == [[1, 2, 3]]


def test_a_store_may_be_cleared_while_it_is_open(path: Path) -> None:
    store = open_store(path)
    store.add([1, 2, 3])
    store_module.clear_store(path)
    assert not path.exists()
    store.add([4, 5, 6])
    assert stored(path) == [[4, 5, 6]]


# --- what a crash cannot do -----------------------------------------------------------------------


def test_a_record_cut_short_anywhere_costs_that_record_only(path: Path) -> None:
    store = open_store(path)
    store.add([1, 2, 3])
    whole = path.stat().st_size
    store.add([4, 5, 6, 7])
    data = path.read_bytes()
    for length in range(whole, len(data)):
        path.write_bytes(data[:length])
        again = open_store(path)
        assert stored(path) == [[1, 2, 3]]
        again.add([8, 9, 10])
        assert stored(path) == [[1, 2, 3], [8, 9, 10]]
        assert read_store(path).end == path.stat().st_size


def test_a_damaged_record_ends_what_is_read(path: Path) -> None:
    store = open_store(path)
    store.add([1, 2, 3])
    whole = path.stat().st_size
    store.add([4, 5, 6, 7])
    data = path.read_bytes()
    for place in range(whole, len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert stored(path) == [[1, 2, 3]]
        open_store(path)


def test_a_failed_replacement_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "MOST_BYTES", 200)
    store = open_store(path)
    store.add(list(range(40)))
    before = path.read_bytes()

    def fail(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store_module.os, "fsync", fail)
    store.add(list(range(50, 90)))
    assert path.read_bytes() == before
    assert "not stored" in caplog.text
    assert "No space left" in caplog.text
    assert {file.name for file in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}


def test_tokens_that_the_vocabulary_lacks_are_never_drafted(path: Path) -> None:
    open_store(path).add([1, 2, 3, 4, 99, 1, 2, 3])
    archive = open_store(path, vocabulary=50).archive
    assert archive.recall([1, 2, 3], 5, beyond=0) == ([4], 3)


# --- several processes ----------------------------------------------------------------------------


def add_many(path: Path, number: int) -> None:
    store = open_store(path)
    for i in range(30):
        store.add([number, i] * 10)


def test_processes_add_to_one_store_without_losing_anything(path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=add_many, args=(path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    found = sorted((sequence[0], sequence[1]) for sequence in stored(path))
    assert found == [(number, i) for number in range(3) for i in range(30)]


def test_an_answer_does_not_wait_for_a_process_that_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "_PATIENCE_S", 0.0)
    store = open_store(path)
    with hold_lock(path.with_name(f"{path.name}.lock")):
        store.add([1, 2, 3, 4])
    assert stored(path) == []
    assert "another process holds" in caplog.text
    assert store.archive.recall([1, 2, 3], 1, beyond=0) == ([4], 3)


def test_a_store_that_became_anothers_is_left_alone(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(path)
    store_module.clear_store(path)
    open_store(path, fingerprint="cd" * 32)
    store.add([1, 2, 3])
    assert stored(path) == []
    assert "another tokenizer" in caplog.text


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"Dear diary,\n", "is no store of forerun"),
        (b"forerun store 1\n", "is no store of forerun"),
        (LINE[:-1], "is no store of forerun"),
        (LINE.replace(b" 1 ", b" 2 "), "format version 2, but this forerun reads version 1"),
        (LINE.replace(b"abab", b"cdcd"), "holds the tokens of another tokenizer.*--clear"),
    ],
)
def test_other_files_are_refused_and_left_alone(path: Path, content: bytes, why: str) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o644)
    with pytest.raises(StoreError, match=why):
        open_store(path)
    if b"cdcd" not in content:
        with pytest.raises(StoreError, match=why):
            store_module.clear_store(path)
    assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_folder_and_an_unreachable_place_are_refused(tmp_path: Path) -> None:
    mode = tmp_path.stat().st_mode
    with pytest.raises(StoreError, match=r"cannot be used .*directory"):
        open_store(tmp_path)
    assert tmp_path.stat().st_mode == mode
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used"):
        open_store(tmp_path / "file" / "past.store")


# --- in the engine and the commands ---------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("store") / "bundle", end_ids=(), sharpness=2.0)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "coupled": True, "seed": 3}], ids=str)
def test_the_text_does_not_depend_on_the_store_and_drafting_does(
    bundle: Path, path: Path, options: dict[str, object]
) -> None:
    asked = {"max_tokens": 20, "stages": ["suffix"], "k": 3, **options}
    with Engine.open(bundle) as engine:
        without = engine.complete("abcfe", **asked)
    with Engine.open(bundle, store=path) as engine:
        first = engine.complete("abcfe", **asked)
    with Engine.open(bundle, store=path) as engine:
        second = engine.complete("abcfe", **asked)
    assert first.token_ids == second.token_ids == without.token_ids
    assert first.stats.target_passes == without.stats.target_passes
    assert second.stats.accepted == second.stats.drafted > first.stats.accepted
    assert len(stored(path)) == 1


def test_an_unfinished_answer_is_not_stored(bundle: Path, path: Path) -> None:
    with Engine.open(bundle, store=path) as engine:
        answer = engine.generate("abcfe", max_tokens=20)
        next(answer)
        answer.close()
        assert stored(path) == []
        completion = engine.complete("abc", max_tokens=5, speculate="off")
    assert stored(path) == [[0, 1, 2, *completion.token_ids]]


def test_the_command_inspects_and_clears(
    bundle: Path, path: Path, capsys: pytest.CaptureFixture
) -> None:
    asked = ["--prompt", "abca", "--max-tokens", "6", "--store", str(path)]
    assert main(["generate", str(bundle), *asked]) == 0
    capsys.readouterr()
    assert main(["store", str(path), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures == {
        "store": str(path),
        "sequences": 1,
        "tokens": 10,
        "bytes": path.stat().st_size,
        "most_bytes": 4 << 20,
        "tokenizer": "0" * 64,
    }
    assert main(["store", str(path)]) == 0
    assert "tokens      10" in capsys.readouterr().out
    assert main(["store", str(path), "--clear"]) == 0
    assert main(["store", str(path)]) == 1
    assert f"there is no store at {path}" in capsys.readouterr().err
    assert main(["generate", str(bundle), *asked[:-1], str(bundle / "manifest.json")]) == 1
    assert "is no store of forerun" in capsys.readouterr().err
