"""Downloads over a real local server: resuming, breaking off, refusing, starting afresh."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from export.download import download
from export.errors import FetchError, NoNetworkError

CONTENT = bytes(range(256)) * 40  # 10,240 bytes


@dataclass
class Shelf:
    """What the server does, and what it was asked."""

    address: str = ""
    honours_ranges: bool = True
    breaks_off_after: int | None = None
    asked: list[str | None] = field(default_factory=list)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            shelf.asked.append(asked)
            start = 0
            if asked and shelf.honours_ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if self.path != "/file":
                self.send_error(404)
            elif start >= len(CONTENT):
                self.send_error(416)
            else:
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(CONTENT) - start))
                self.end_headers()
                body = CONTENT[start:]
                self.wfile.write(body[: shelf.breaks_off_after])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    shelf.address = f"http://127.0.0.1:{server.server_port}"
    yield shelf
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def ignore_bytes(here: int, total: int | None) -> None:
    del here, total


def test_a_fresh_download_reports_its_bytes(shelf: Shelf, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    download(
        f"{shelf.address}/file",
        tmp_path / "file",
        on_bytes=lambda here, total: seen.append((here, total)),
    )
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert shelf.asked == [None]


def test_a_half_finished_file_is_continued(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:3000])
    download(f"{shelf.address}/file", tmp_path / "file", on_bytes=ignore_bytes)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert shelf.asked == ["bytes=3000-"]


def test_a_connection_that_breaks_off_is_taken_up_again(shelf: Shelf, tmp_path: Path) -> None:
    shelf.breaks_off_after = 4000
    download(f"{shelf.address}/file", tmp_path / "file", on_bytes=ignore_bytes)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert shelf.asked == [None, "bytes=4000-", "bytes=8000-"]


def test_a_server_that_gives_nothing_more_ends_it_and_what_came_stays(
    shelf: Shelf, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(CONTENT[:3000])
    shelf.breaks_off_after = 0
    with pytest.raises(NoNetworkError, match="broke off after 3000 of 10240 bytes; run again"):
        download(f"{shelf.address}/file", tmp_path / "file", on_bytes=ignore_bytes)
    assert (tmp_path / "file").read_bytes() == CONTENT[:3000]


def test_a_server_without_ranges_starts_afresh(shelf: Shelf, tmp_path: Path) -> None:
    shelf.honours_ranges = False
    (tmp_path / "file").write_bytes(b"x" * 3000)
    download(f"{shelf.address}/file", tmp_path / "file", on_bytes=ignore_bytes)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_file_that_is_longer_than_the_servers_starts_afresh(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 20_000)
    download(f"{shelf.address}/file", tmp_path / "file", on_bytes=ignore_bytes)
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_refusal_names_the_address_and_the_code(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="/absent was refused: 404"):
        download(f"{shelf.address}/absent", tmp_path / "file", on_bytes=ignore_bytes)
    assert not (tmp_path / "file").exists()


def test_nobody_there_is_no_network(tmp_path: Path) -> None:
    with pytest.raises(NoNetworkError, match="cannot be reached"):
        download("http://127.0.0.1:9/file", tmp_path / "file", on_bytes=ignore_bytes)


def test_a_file_address_is_copied(tmp_path: Path) -> None:
    (tmp_path / "there is").write_bytes(CONTENT)
    download((tmp_path / "there is").as_uri(), tmp_path / "file", on_bytes=ignore_bytes)
    assert (tmp_path / "file").read_bytes() == CONTENT
