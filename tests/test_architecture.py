"""The import directions, sizes and names that the code map promises, held by reading the source."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("export", "runtime", "tools")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))

# Lowest first: a module imports only from those before it. A new module takes its place here.
RUNTIME_ORDER = (
    "errors",
    "storage",
    "lock",
    "manifest",
    "bundle",
    "memory",
    "vocabulary",
    "providers",
    "gpu",
    "profiles",
    "session",
    "side_graphs",
    "logits",
    "cache",
    "columns",
    "adopted",
    "steps",
    "model",
    "batch",
    "tree",
    "places",
    "law",
    "ngram",
    "ngram_file",
    "noise",
    "sampling",
    "acceptance",
    "costs",
    "stats",
    "drafters",
    "measure",
    "tune",
    "pass_counter",
    "kept_costs",
    "store",
    "cost_report",
    "cost_plot",
    "request",
    "stages",
    "speculate",
    "trace",
    "drift",
    "cost_keeper",
    "survival",
    "window",
    "candidate",
    "controller",
    "stack",
    "tokenizer",
    "template",
    "text",
    "generation",
    "engine",
    "arguments",
    "describe",
    "__init__",
    "__main__",
)
RUNTIME_NEEDS = {"numpy", "onnxruntime", "tokenizers", "jinja2"}
ONE_USER = {"onnxruntime": "session", "matplotlib": "cost_plot"}
EXPORT_NEEDS = {
    "accelerate",
    "gguf",
    "huggingface_hub",  # comes with transformers
    "ml_dtypes",  # comes with onnx
    "numpy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
}
# What export shares with the runtime: the format and its check, errors, the cache folder, locks,
# and how vocabularies are compared.
SHARED_WITH_EXPORT = {"bundle", "errors", "lock", "manifest", "storage", "vocabulary"}
PARITY_RUNS_ON = SHARED_WITH_EXPORT | {"batch", "cache", "model", "providers", "session"}
# `--help` and fetching answer at once: these load nothing outside the standard library.
LIGHT_EXPORT = (
    "__init__",
    "__main__",
    "bundle",
    "download",
    "errors",
    "fetch",
    "plan",
    "progress",
    "recipes",
    "report",
    "stages",
    "wheels",
)
VAGUE_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "misc"}
LONGEST_FILE = 400


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), filename=str(file))


def imports(file: Path, nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Yield the absolute dotted name of everything that `nodes` of `file` import."""
    package = list(file.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def all_imports(file: Path) -> list[str]:
    return list(imports(file, iter(ast.walk(parse(file)))))


def top_level_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Walk what runs on import: no function bodies, nothing that only type checkers see."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from top_level_nodes(child)


def runtime_module(dotted: str) -> str:
    """Map `runtime.drafters.base.Drafter` to `drafters`, `runtime.Engine` to `__init__`."""
    second = dotted.split(".")[1]
    return second if second in RUNTIME_ORDER else "__init__"


def runtime_unit(file: Path) -> str:
    """Map a runtime file to its entry in RUNTIME_ORDER; a sub-package is one entry."""
    return file.relative_to(ROOT / "runtime").with_suffix("").parts[0]


RUNTIME_FILES = [file for file in FILES if file.is_relative_to(ROOT / "runtime")]
EXPORT_FILES = [file for file in FILES if file.is_relative_to(ROOT / "export")]


@pytest.mark.parametrize("file", RUNTIME_FILES, ids=name_of)
def test_the_runtime_imports_only_what_stands_above(file: Path) -> None:
    unit = runtime_unit(file)
    assert unit in RUNTIME_ORDER, f"give {name_of(file)} its place in RUNTIME_ORDER"
    place = RUNTIME_ORDER.index(unit)
    for dotted in all_imports(file):
        if dotted.split(".")[0] == "runtime":
            imported = runtime_module(dotted)
            lower = RUNTIME_ORDER.index(imported) < place
            assert lower or imported == unit == "drafters", f"{name_of(file)} imports {dotted}"


@pytest.mark.parametrize("file", RUNTIME_FILES, ids=name_of)
def test_the_runtime_needs_four_libraries_and_one_file_knows_onnxruntime(file: Path) -> None:
    roots = {dotted.split(".")[0] for dotted in all_imports(file)}
    foreign = roots - sys.stdlib_module_names - {"runtime"}
    assert foreign <= RUNTIME_NEEDS | {"matplotlib"}
    for library in foreign & set(ONE_USER):
        assert file == ROOT / "runtime" / f"{ONE_USER[library]}.py"
    loaded = {name.split(".")[0] for name in imports(file, top_level_nodes(parse(file)))}
    assert "matplotlib" not in loaded, "only who asks for a plot needs it"


@pytest.mark.parametrize("file", EXPORT_FILES, ids=name_of)
def test_export_shares_the_format_only_and_parity_runs_what_it_made(file: Path) -> None:
    allowed = PARITY_RUNS_ON if file.stem == "parity" else SHARED_WITH_EXPORT
    for dotted in all_imports(file):
        root = dotted.split(".")[0]
        known = root in sys.stdlib_module_names or root in EXPORT_NEEDS | {"export", "runtime"}
        assert known, f"{name_of(file)} imports {dotted}"
        assert root != "runtime" or runtime_module(dotted) in allowed, dotted
        assert root != "onnxruntime" or dotted.startswith("onnxruntime.quantization"), dotted


@pytest.mark.parametrize("stem", LIGHT_EXPORT)
def test_what_answers_at_once_loads_no_library(stem: str) -> None:
    file = ROOT / "export" / f"{stem}.py"
    roots = {name.split(".")[0] for name in imports(file, top_level_nodes(parse(file)))}
    assert roots <= sys.stdlib_module_names | {"export", "runtime"}


@pytest.mark.parametrize(
    "command",
    [("-m", "export", "--help"), ("-m", "tools.fetch", "--help"), ("-c", "import runtime")],
    ids=" ".join,
)
def test_help_and_the_runtime_load_no_torch(command: tuple[str, ...]) -> None:
    run = subprocess.run(
        [sys.executable, "-X", "importtime", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    loaded = {line.rsplit("|", 1)[-1].strip() for line in run.stderr.splitlines()}
    assert loaded & {"runtime", "argparse"}
    assert not loaded & {"torch", "transformers", "onnx", "onnxscript", "onnx_ir"}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_no_library_imports_the_tools_or_the_tests(file: Path) -> None:
    roots = {dotted.split(".")[0] for dotted in all_imports(file)}
    assert "tests" not in roots
    assert "tools" not in roots or file.is_relative_to(ROOT / "tools")


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_every_file_is_short_named_well_and_says_what_it_is_for(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= LONGEST_FILE
    assert not VAGUE_NAMES & set(file.relative_to(ROOT).with_suffix("").parts)
    assert ast.get_docstring(parse(file)), f"{name_of(file)} has no docstring"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_only_programs_print(file: Path) -> None:
    calls = (node.func for node in ast.walk(parse(file)) if isinstance(node, ast.Call))
    prints = any(isinstance(call, ast.Name) and call.id == "print" for call in calls)
    assert not prints or file.stem == "__main__" or file.is_relative_to(ROOT / "tools")


def test_tests_are_flat_and_no_package() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py")), "it would shadow the real packages"
    assert all(file.parent == ROOT / "tests" for file in (ROOT / "tests").rglob("test_*.py"))


def test_the_readme_maps_every_module() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w./]+)`", text[text.index("## How it fits together") :]))
    for file in (*EXPORT_FILES, *RUNTIME_FILES):
        parts = file.relative_to(ROOT).with_suffix("").parts[1:]
        spellings = {"/".join(parts), parts[-1]}
        assert parts[-1] == "__init__" or spellings & named, f"{name_of(file)} is not in the map"
