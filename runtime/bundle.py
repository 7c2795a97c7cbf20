"""Opening a bundle folder: what its manifest promises must really lie there.

In: a path. Out: a `Bundle`, or a `BundleError` that names the file, what was expected and the fix.
Paths, links and sizes are always checked; hashes on request, as the engine does.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from .errors import BundleError
from .manifest import MANIFEST_NAME, FileEntry, Manifest, ModelEntry, parse_manifest

_READ_BYTES = 1 << 20
_LONGEST_PATH = 1000


@dataclass(frozen=True)
class Bundle:
    """A checked bundle: its folder and its manifest."""

    folder: Path
    manifest: Manifest

    def graph(self, model: ModelEntry) -> Path:
        """Return the path of a model's graph."""
        return self.folder / model.graph

    @property
    def tokenizer(self) -> Path:
        """The path of the tokenizer's file."""
        return self.folder / self.manifest.tokenizer.file

    def chat_template(self) -> str | None:
        """Return the chat template's text, or `None` when the checkpoint had none.

        Raises:
            BundleError: the file cannot be read as text.
        """
        name = self.manifest.tokenizer.chat_template
        return None if name is None else _read_text(self.folder / name)

    def weight_bytes(self, model: ModelEntry) -> int:
        """Return how many bytes a model's graph and weights take on the disk."""
        prefix = PurePosixPath(model.graph).parent
        files = self.manifest.files
        return sum(file.bytes for file in files if PurePosixPath(file.path).parent == prefix)


def open_bundle(path: str | Path, *, verify_hashes: bool = False) -> Bundle:
    """Check the folder at `path` and return it as a bundle.

    Args:
        path: the folder that the export wrote.
        verify_hashes: also compare every file's SHA-256 with the manifest's; about a second for
            each gigabyte.

    Raises:
        BundleError: no bundle, incomplete, altered, escaping its folder, or of a newer version.
    """
    folder = Path(path)
    manifest = parse_manifest(_read_manifest(folder))
    listed = {file.path for file in manifest.files}
    for file in manifest.files:
        try:
            _check_file(folder, file)
        except OSError as error:
            raise BundleError(f"{folder / file.path} cannot be read: {error.strerror}") from None
    for name in _referenced(manifest):
        if name not in listed:
            raise BundleError(
                f"{folder / MANIFEST_NAME} refers to {name!r} but does not list it among its "
                "files: the manifest is damaged, export the bundle again"
            )
    if verify_hashes:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda file: _check_hash(folder, file), manifest.files))
    return Bundle(folder, manifest)


def _read_manifest(folder: Path) -> str:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise BundleError(f"{folder} {what}: give the folder that  python -m export  wrote")
    try:
        return _read_text(folder / MANIFEST_NAME)
    except FileNotFoundError:
        raise BundleError(
            f"{folder} holds no {MANIFEST_NAME}: it is no bundle, or an export into it was "
            "interrupted; export it again"
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} cannot be read: {error}") from None


def _referenced(manifest: Manifest) -> list[str]:
    models = manifest.models
    names = [*(model.graph for model in models), manifest.tokenizer.file]
    names += [model.token_ids for model in models if model.token_ids is not None]
    if manifest.tokenizer.chat_template is not None:
        names.append(manifest.tokenizer.chat_template)
    if manifest.ngram is not None:
        names.append(manifest.ngram.file)
    return names


def _check_file(folder: Path, file: FileEntry) -> None:
    _check_path(folder, file.path)
    path = folder / file.path
    link = next((p for p in _below(folder, path) if p.is_symlink()), None)
    if link is not None:
        raise BundleError(
            f"{link} is a link: ONNX Runtime reads weights only from real files beside the graph; "
            "copy the bundle with  cp -rL"
        )
    if not path.is_file():
        raise BundleError(
            f"the bundle is incomplete: {path} is missing (expected {file.bytes} bytes); copy the "
            "whole folder, or export it again"
        )
    size = path.stat().st_size
    if size != file.bytes:
        raise BundleError(
            f"the bundle is damaged: {path} has {size} bytes, expected {file.bytes}; copy it "
            "again, or export it again"
        )


def _check_path(folder: Path, name: str) -> None:
    windows = PureWindowsPath(name)
    parts = name.split("/")
    escapes = windows.drive or windows.root or "\\" in name or "\0" in name or ".." in parts
    if escapes or len(name) > _LONGEST_PATH or any(part in ("", ".") for part in parts):
        raise BundleError(
            f"{folder / MANIFEST_NAME} lists the path {name[:80]!r}, which is not a plain path "
            "inside the bundle: do not use this bundle"
        )


def _below(folder: Path, path: Path) -> list[Path]:
    inside = path.relative_to(folder)
    return [folder / Path(*inside.parts[: i + 1]) for i in range(len(inside.parts))]


def _check_hash(folder: Path, file: FileEntry) -> None:
    path = folder / file.path
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    if digest.hexdigest() != file.sha256:
        raise BundleError(
            f"the bundle was altered: {path} has SHA-256 {digest.hexdigest()}, expected "
            f"{file.sha256}; copy it again, or export it again"
        )
