"""The wheel: what is in it, what it needs, and that it runs where nothing else is installed."""

import email
import re
import subprocess
import sys
import venv
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from hatchling.build import build_wheel

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "onnx")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return folder / build_wheel(str(folder))


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_holds_every_module_of_both_packages(contents: set[str]) -> None:
    modules = {
        file.relative_to(ROOT).as_posix()
        for package in ("export", "runtime")
        for file in (ROOT / package).rglob("*.py")
    }
    assert modules <= contents
    assert "runtime/drafters/__init__.py" in modules


def test_the_wheel_holds_the_recipes(contents: set[str]) -> None:
    recipes = {f"export/recipe_data/{f.name}" for f in (ROOT / "models/recipes").glob("*.toml")}
    assert len(recipes) == 3
    assert recipes <= contents


def test_the_wheel_holds_nothing_else(contents: set[str]) -> None:
    roots = {name.split("/")[0] for name in contents}
    assert roots == {"export", "runtime", next(r for r in roots if r.endswith(".dist-info"))}
    assert any(name.endswith("licenses/LICENSE") for name in contents)
    assert not [name for name in contents if name.endswith((".pyc", ".gguf", ".onnx"))]


def extras_of(library: str, metadata: Message) -> set[str]:
    """Return the extras that bring `library`; the empty string stands for "always"."""
    needs = [need.replace(" ", "") for need in metadata.get_all("Requires-Dist", [])]
    matching = [need for need in needs if re.match(rf"{library}[<>=~!;]", need)]
    marks = [re.search(r"extra==['\"](\w+)['\"]", need) for need in matching]
    return {mark[1] if mark else "" for mark in marks}


def test_heavy_libraries_come_with_the_export_extra_only(metadata: Message) -> None:
    for library in HEAVY:
        assert extras_of(library, metadata) == {"export", "dev"}
    for library in ("numpy", "tokenizers", "jinja2"):
        assert extras_of(library, metadata) == {""}
    assert extras_of("onnxruntime", metadata) == {"cpu", "export", "dev"}
    assert extras_of("onnxruntime-gpu", metadata) == {"gpu"}


def test_the_metadata_names_licence_and_commands(metadata: Message, wheel: Path) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    with zipfile.ZipFile(wheel) as archive:
        entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "forerun = runtime.__main__:main" in archive.read(entry).decode()


@pytest.mark.real
def test_the_wheel_runs_where_only_the_runtime_is_installed(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    elsewhere = tmp_path / "an empty folder"
    elsewhere.mkdir()

    def run(*arguments: str) -> str:
        command = [str(python), *arguments]
        done = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    run("-m", "pip", "install", "--quiet", f"{wheel}[cpu]")
    missing = "import importlib.util as u; print([n for n in {} if u.find_spec(n)])"
    assert run("-P", "-c", missing.format(HEAVY)) == "[]\n"
    assert "usage: python -m runtime" in run("-P", "-m", "runtime", "--help")
    run("-P", "-c", "import runtime")
    code = "from export.recipes import read_recipes; print(len(read_recipes()))"
    assert run("-P", "-c", code) == "3\n"
