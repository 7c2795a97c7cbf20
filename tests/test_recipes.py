"""Recipes: the shipped ones, what a broken one is told, and where fetched files go."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from export.errors import RecipeError
from export.recipes import find_recipe, read_recipe, read_recipes, recipe_folder

SHIPPED = {
    "smollm2-135m-instruct": (98362432, 1, "HuggingFaceTB/SmolLM2-135M-Instruct"),
    "qwen2.5-coder-1.5b-instruct": (1117320768, 22, "Qwen/Qwen2.5-Coder-1.5B-Instruct"),
    "qwen2.5-coder-0.5b-instruct": (491400064, 6, "Qwen/Qwen2.5-Coder-0.5B-Instruct"),
}

GOOD = """
name = "tiny"
description = "A tiny model."
kind = "base"
licence = "MIT"
[hub]
id = "someone/tiny"
revision = "main"
[file]
name = "tiny.gguf"
bytes = 10
sha256 = "{zeros}"
[package]
distribution = "tiny-part{{n}}"
version = "1.0"
member = "tiny_part{{n}}/part{{n:02}}.bin"
parts = 2
wheels = ["{zeros}", "{ones}"]
""".format(zeros="0" * 64, ones="1" * 64)


def write(folder: Path, text: str) -> Path:
    file = folder / "tiny.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_shipped_recipes_are_the_three_that_the_readme_promises() -> None:
    found = {r.name: (r.bytes, len(r.parts), r.hub_id) for r in read_recipes()}
    assert found == SHIPPED
    assert all(recipe.licence == "Apache-2.0" for recipe in read_recipes())


def test_parts_are_numbered_from_one_with_two_digits_where_asked(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path, GOOD))
    assert [part.distribution for part in recipe.parts] == ["tiny-part1", "tiny-part2"]
    assert [part.member for part in recipe.parts] == [
        "tiny_part1/part01.bin",
        "tiny_part2/part02.bin",
    ]
    assert [part.wheel_sha256[0] for part in recipe.parts] == ["0", "1"]


def test_recipes_are_found_by_name_in_any_case() -> None:
    assert find_recipe("SmolLM2-135M-Instruct") == find_recipe("smollm2-135m-instruct")


def test_an_unknown_name_lists_the_known_ones_and_the_closest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean 'qwen2.5-coder-0.5b-instruct'") as caught:
        find_recipe("qwen2.5-coder-0.5b")
    assert all(name in str(caught.value) for name in SHIPPED)
    assert "\n" not in str(caught.value)
    with pytest.raises(RecipeError, match=r"no recipe is called 'zzz', only [^;]*$"):
        find_recipe("zzz")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "tiny"', 'name = "other"', "name must be the file's own name 'tiny'"),
        ('kind = "base"', 'kind = "poem"', "kind must be 'chat' or 'base', found 'poem'"),
        ('licence = "MIT"', "", "licence must be a value of type str, found None"),
        ('licence = "MIT"', 'license = "MIT"', "license must be one of"),
        ('revision = "main"', 'revison = "main"', "revison must be one of"),
        ("bytes = 10", "bytes = 0", "file.bytes must be a size of at least 1"),
        ("bytes = 10", "bytes = true", "bytes must be a value of type int, found True"),
        ("tiny.gguf", "../tiny.gguf", "file.name must be a plain file name"),
        ("parts = 2", "parts = 3", "package.wheels must be a list of 3 hashes"),
        ('"1111', '"x111', r"package.wheels\[1\] must be a SHA-256"),
        ("[hub]", "[hob]", "hub must be a table"),
        ("[hub]", "[hub", "cannot be read"),
    ],
)
def test_a_broken_recipe_is_told_which_entry_and_why(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    file = write(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(RecipeError, match=message):
        read_recipe(file)


def test_a_checkout_reads_the_recipes_of_models(tmp_path: Path) -> None:
    assert recipe_folder() == Path(__file__).parents[1] / "models" / "recipes"
    assert read_recipes(tmp_path) == ()


def test_a_recipe_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        find_recipe("smollm2-135m-instruct").bytes = 1  # type: ignore[misc]


def test_reading_and_fetching_need_the_standard_library_only() -> None:
    code = (
        "import sys, export.fetch, tools.fetch\n"
        "heavy = {'torch', 'transformers', 'onnx', 'numpy', 'onnxruntime'} & set(sys.modules)\n"
        "print(sorted(heavy))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[]\n", "")
