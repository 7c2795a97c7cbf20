"""What a GGUF file says about itself, read without touching its weights.

In: a path. Out: `GgufFile`: metadata (long lists left out) and the tensor table, with the size
that the file must have; or `CheckpointError` when it is no GGUF or is cut short.
Source: the GGUF specification, versions 2 and 3 (ggml/docs/gguf.md).
"""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from .errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True)
class GgufTensor:
    """One row of the tensor table; `shape` as PyTorch orders it."""

    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class GgufFile:
    """The head of a GGUF file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]

    @property
    def architecture(self) -> str:
        """The family as llama.cpp names it."""
        return str(self.metadata.get("general.architecture", "unknown"))

    @property
    def parameters(self) -> int:
        """Number of weights in the table."""
        return sum(_product(tensor.shape) for tensor in self.tensors)


def read_gguf(path: Path) -> GgufFile:
    """Read the head of `path` and check that all tensors lie within the file.

    Raises CheckpointError: not a GGUF file, of an unknown version, or cut short.
    """
    size = path.stat().st_size
    if size < 24:
        raise CheckpointError(f"{path} is no GGUF file: it has only {size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content[:4] != _MAGIC:
            raise CheckpointError(f"{path} is no GGUF file: it does not start with 'GGUF'")
        try:
            head, data_start = _read_head(_Reader(content), path)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CheckpointError(
                f"{path} is cut short or damaged: its {size} bytes end inside the tensor table "
                f"({error}); fetch it again"
            ) from None
    end = data_start + max((t.offset + t.bytes for t in head.tensors), default=0)
    if size < end:
        last = max(head.tensors, key=lambda tensor: tensor.offset)
        raise CheckpointError(
            f"{path} is cut short: its tensor table needs {end} bytes (up to {last.name}), but the "
            f"file has {size}; fetch it again"
        )
    return head


class _Reader:
    """Reads values one after the other."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.place = 4

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self.content, self.place)
        self.place += struct.calcsize(form)
        return value

    def text(self) -> str:
        length = self.number("Q")
        if self.place + length > len(self.content):
            raise IndexError("a text reaches beyond the end")
        self.place += length
        return self.content[self.place - length : self.place].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.skip_array()
        if kind not in _NUMBERS:
            raise IndexError(f"value kind {kind} is unknown")
        return self.number(_NUMBERS[kind])

    def skip_array(self) -> int:
        """Pass over an array; its length stands for it."""
        kind, count = self.number("I"), self.number("Q")
        if kind in _NUMBERS:
            self.place += count * struct.calcsize(_NUMBERS[kind])
            return int(count)
        for _ in range(count):
            self.value(kind)
        return int(count)


def _read_head(reader: _Reader, path: Path) -> tuple[GgufFile, int]:
    version = reader.number("I")
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{path} is GGUF version {version}; versions 2 and 3 can be read: convert it again "
            "with a current llama.cpp"
        )
    tensor_count, pair_count = reader.number("Q"), reader.number("Q")
    metadata = {}
    for _ in range(pair_count):
        key = reader.text()
        metadata[key] = reader.value(reader.number("I"))
    tensors = tuple(_read_tensor(reader, path) for _ in range(tensor_count))
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    return GgufFile(path, metadata, tensors), -(-reader.place // alignment) * alignment


def _read_tensor(reader: _Reader, path: Path) -> GgufTensor:
    name = reader.text()
    rank = reader.number("I")
    shape = tuple(reader.number("Q") for _ in range(rank))
    kind, offset = reader.number("I"), reader.number("Q")
    try:
        quantization = gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise CheckpointError(
            f"{path}: tensor {name} is stored in a way (ggml type {kind}) that is not known here: "
            "convert the model to Q8_0, Q4_K or F16"
        ) from None
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    size = _product(shape) // per_block * block_bytes
    return GgufTensor(name, tuple(reversed(shape)), quantization.name, offset, size)


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
