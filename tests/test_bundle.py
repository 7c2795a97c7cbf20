"""Bundles that are damaged, hostile or oddly named: opened rightly, or refused in one sentence."""

import json
import shutil

import pytest
from tiny_bundle import make_bundle

from runtime import Engine
from runtime.bundle import open_bundle
from runtime.errors import BundleError
from runtime.manifest import FORMAT_VERSION, MANIFEST_NAME, dump_manifest, parse_manifest


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    folder = make_bundle(tmp_path_factory.mktemp("bundle") / "good")
    (folder / "target" / "weights.bin").write_bytes(bytes(range(100)))
    entry = {"path": "target/weights.bin", "bytes": 100, "sha256": "0" * 64}
    edit(folder, lambda raw: raw["files"].append(entry))
    return folder


@pytest.fixture
def folder(pristine, tmp_path):
    return shutil.copytree(pristine, tmp_path / "bundle")


def edit(folder, change):
    path = folder / MANIFEST_NAME
    raw = json.loads(path.read_text(encoding="utf-8"))
    change(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")


def refusal(path, **options):
    with pytest.raises(BundleError) as caught:
        open_bundle(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- files ----------------------------------------------------------------------------------------


def test_a_good_bundle_opens_and_knows_its_files(folder):
    bundle = open_bundle(folder)
    target, draft = bundle.manifest.models
    assert bundle.graph(target) == folder / "target" / "model.onnx"
    assert bundle.tokenizer == folder / "tokenizer.json"
    assert bundle.chat_template() is None
    sizes = [(folder / name / "model.onnx").stat().st_size for name in ("target", "draft")]
    assert bundle.weight_bytes(target) == sizes[0] + 100
    assert bundle.weight_bytes(draft) == sizes[1]


def test_a_missing_file_is_named_with_its_size(folder):
    (folder / "target" / "weights.bin").unlink()
    text = refusal(folder)
    assert "incomplete" in text
    assert "target/weights.bin is missing (expected 100 bytes)" in text


def test_a_folder_in_the_place_of_a_file_is_a_missing_file(folder):
    (folder / "target" / "weights.bin").unlink()
    (folder / "target" / "weights.bin").mkdir()
    assert "weights.bin is missing" in refusal(folder)


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_wrong_size_is_named(folder, size):
    (folder / "target" / "weights.bin").write_bytes(bytes(size))
    assert f"weights.bin has {size} bytes, expected 100" in refusal(folder)


def test_an_altered_byte_is_found_when_hashes_are_verified(folder):
    edit(folder, lambda raw: raw["files"].pop())
    open_bundle(folder, verify_hashes=True)
    path = folder / "draft" / "model.onnx"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    open_bundle(folder)
    text = refusal(folder, verify_hashes=True)
    assert "altered" in text
    assert "draft/model.onnx has SHA-256 " in text


@pytest.mark.parametrize("kind", ["relative", "absolute", "outside", "dangling"])
def test_a_link_is_refused_with_the_way_out(folder, tmp_path, kind):
    path = folder / "target" / "weights.bin"
    away = tmp_path / "weights.bin"
    path.rename(away if kind == "outside" else path.with_name("blob"))
    goal = {"relative": "blob", "absolute": path.with_name("blob"), "outside": away}
    path.symlink_to(goal.get(kind, "nowhere"))
    text = refusal(folder)
    assert f"{path} is a link" in text
    assert "cp -rL" in text


def test_a_linked_folder_inside_is_refused(folder, tmp_path):
    (folder / "target").rename(tmp_path / "target")
    (folder / "target").symlink_to(tmp_path / "target")
    assert f"{folder / 'target'} is a link" in refusal(folder)


def test_the_bundle_folder_itself_may_be_a_link(folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert open_bundle(link).folder == link
    with Engine.open(link, threads=1, verify_hashes=False) as engine:
        assert engine.complete("abc", max_tokens=3).token_ids


@pytest.mark.parametrize("name", ["mö dèl 模型 #1", "a%20b", "-x", "tab\there", "quote'\""])
def test_an_odd_folder_name_works(folder, tmp_path, monkeypatch, name):
    odd = folder.rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for path in (odd, str(odd), f"./{name}", f"./{name}/"):
        with Engine.open(path, threads=1, verify_hashes=False) as engine:
            assert engine.complete("abc", max_tokens=3).token_ids


def test_a_moved_bundle_works(folder, tmp_path):
    moved = folder.rename(tmp_path / "elsewhere")
    open_bundle(moved)


def test_what_is_no_folder_says_so(folder, tmp_path):
    assert "does not exist" in refusal(tmp_path / "nothing")
    assert "is a file" in refusal(folder / MANIFEST_NAME)
    assert f"holds no {MANIFEST_NAME}" in refusal(folder / "target")


def test_a_manifest_that_cannot_be_read_says_so(folder):
    path = folder / MANIFEST_NAME
    path.write_bytes(b"\xff\xfe{}")
    assert "cannot be read" in refusal(folder)
    path.unlink()
    path.mkdir()
    assert "cannot be read" in refusal(folder)


# --- paths ----------------------------------------------------------------------------------------

ESCAPES = [
    "",
    ".",
    "..",
    "../bundle/tokenizer.json",
    "target/../tokenizer.json",
    "target/..",
    "./tokenizer.json",
    "target//model.onnx",
    "target/",
    "/etc/passwd",
    "//server/share/file",
    "C:/windows/file",
    "C:file",
    "c:",
    "target\\model.onnx",
    "..\\tokenizer.json",
    "\\\\server\\share\\file",
    "tokenizer.json\0",
    "\0",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_path_that_is_not_plain_is_refused(folder, name):
    edit(folder, lambda raw: raw["files"][0].update(path=name))
    text = refusal(folder)
    assert repr(name) in text
    assert "not a plain path" in text


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("x" * 5000, "not a plain path"),
        ("a/" * 3000 + "a", "not a plain path"),
        ("x" * 999, "cannot be read"),
        ("\ud800", "is missing"),
        ("tokenizer.json/x", "is missing"),
    ],
)
def test_a_path_that_no_file_can_have_is_refused(folder, name, match):
    edit(folder, lambda raw: raw["files"][0].update(path=name))
    assert match in refusal(folder)


@pytest.mark.parametrize("name", ["target/other.onnx", "../target/model.onnx", "/etc/passwd", ""])
def test_only_listed_files_are_used(folder, name):
    (folder / "target" / "other.onnx").write_bytes(b"x")
    for change in (
        lambda raw: raw["models"][0].update(graph=name),
        lambda raw: raw["tokenizer"].update(file=name),
        lambda raw: raw["tokenizer"].update(chat_template=name),
    ):
        before = (folder / MANIFEST_NAME).read_text(encoding="utf-8")
        edit(folder, change)
        assert f"refers to {name!r} but does not list it" in refusal(folder)
        (folder / MANIFEST_NAME).write_text(before, encoding="utf-8")


# --- manifest -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "nothing", '{"a": 1,}', "[" * 100_000, '{"a":' * 100_000, "\ufeff{}"]
)
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(BundleError, match="is not valid JSON"):
        parse_manifest(text)


@pytest.mark.parametrize("text", ["[]", "null", "3", '"text"', "true", "NaN"])
def test_json_that_is_no_object_is_refused(text):
    with pytest.raises(BundleError, match="must hold a JSON object"):
        parse_manifest(text)


@pytest.mark.parametrize(
    ("version", "match"),
    [
        (FORMAT_VERSION + 1, "update forerun"),
        (10**30, "update forerun"),
        (0, "must name format_version"),
        (-1, "must name format_version"),
        (True, "must name format_version"),
        (1.0, "must name format_version"),
        ("1", "must name format_version"),
        (None, "must name format_version"),
    ],
)
def test_another_format_version_is_refused(folder, version, match):
    edit(folder, lambda raw: raw.update(format_version=version))
    assert match in refusal(folder)


def places(value, path=()):
    """Yield the path of every field of a JSON object, those in lists by their first item."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


def test_every_missing_field_and_every_wrong_type_is_named(folder):
    made = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    made["ngram"] = {"file": "ngram/table.npz", "order": 3, "counted": 9, "source": "a text"}
    text = json.dumps(made)
    may_be_absent = {"bos_token", "eos_token", "bos_id", "chat_template", "licence", "block_size"}
    may_be_absent |= {"int8_layers", "is_rebuilt", "token_ids", "ngram", "shapes"}
    fields = list(places(json.loads(text)))
    assert len(fields) > 30
    for path in fields:
        *outer, name = path
        wrongs = [[1, {}], {"a": 1}, "text", 3, 1.5, True, None]
        for wrong in ("absent", *wrongs):
            raw = json.loads(text)
            place = raw
            for step in outer:
                place = place[step]
            right = place[name]
            if wrong == "absent":
                del place[name]
            else:
                place[name] = wrong
            is_fine = (
                (name in may_be_absent and wrong in ("absent", None))
                or (type(wrong) is type(right) and name != "end_ids" and wrong != "text")
                or (name in ("bos_id", "block_size") and wrong == 3 and wrong is not True)
                or (isinstance(wrong, str) and wrong == "text")
            )
            if is_fine:
                continue
            with pytest.raises(BundleError, match=MANIFEST_NAME) as caught:
                parse_manifest(json.dumps(raw))
            assert name in str(caught.value), (path, wrong)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda raw: raw["models"][1].update(name="target"), "two models of one name"),
        (lambda raw: raw["models"].clear(), "one target and then its drafts"),
        (lambda raw: raw["models"].reverse(), "one target and then its drafts"),
        (lambda raw: raw["models"][1].update(role="target"), "one target and then its drafts"),
        (lambda raw: raw["models"][1].update(role="third"), "role must be one of"),
        (lambda raw: raw["models"][0].update(flavour="raw"), "flavour must be one of"),
        (lambda raw: raw["models"][0].update(precision="int2"), "precision must be one of"),
        (lambda raw: raw["models"][0]["cache"].update(dtype="int8"), "dtype must be one of"),
        (lambda raw: raw["models"][0].update(context=0), "context must be at least 1"),
        (lambda raw: raw["models"].append(3), r"models\[\] must be dict"),
        (lambda raw: raw["files"].append("x"), r"files\[\] must be dict"),
        (lambda raw: raw.update(end_ids=[8]), "end-of-text id 8 lies outside"),
        (lambda raw: raw.update(end_ids=[-1]), "end-of-text id -1 lies outside"),
        (lambda raw: raw.update(end_ids=[True]), "end_ids must be int"),
        (lambda raw: raw["files"][0].update(bytes=True), "bytes must be int"),
    ],
)
def test_what_cannot_be_is_refused(folder, change, match):
    edit(folder, change)
    with pytest.raises(BundleError, match=match):
        open_bundle(folder)


def test_the_manifest_survives_a_round_trip(folder):
    text = (folder / MANIFEST_NAME).read_text(encoding="utf-8")
    manifest = parse_manifest(text)
    dumped = dump_manifest(manifest)
    assert parse_manifest(dumped) == manifest
    assert dump_manifest(parse_manifest(dumped)) == dumped
    assert dumped.endswith("}\n")


def test_the_manifest_keeps_every_script(folder):
    edit(folder, lambda raw: raw["tokenizer"].update(eos_token="<模型 é 🎉>", bos_id=5))
    manifest = open_bundle(folder).manifest
    assert manifest.tokenizer.eos_token == "<模型 é 🎉>"
    assert "模型" in dump_manifest(manifest)


# --- what the files hold --------------------------------------------------------------------------


def test_a_chat_template_that_is_no_text_is_refused(folder):
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    entry = {"path": "chat_template.jinja", "bytes": 2, "sha256": "0" * 64}
    edit(folder, lambda raw: raw["files"].append(entry))
    edit(folder, lambda raw: raw["tokenizer"].update(chat_template="chat_template.jinja"))
    with pytest.raises(BundleError, match=r"chat_template\.jinja cannot be read"):
        Engine.open(folder, threads=1, verify_hashes=False)


@pytest.mark.parametrize("name", ["target/model.onnx", "draft/model.onnx", "tokenizer.json"])
def test_garbage_of_the_right_size_is_refused_by_its_reader(folder, name):
    path = folder / name
    path.write_bytes(b"\x07" * path.stat().st_size)
    with pytest.raises(BundleError, match=name) as caught:
        Engine.open(folder, threads=1, verify_hashes=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("width", ["logits", "embeddings"])
def test_a_model_narrower_than_its_tokenizer_is_refused(folder, width):
    edit(folder, lambda raw: raw["models"][-1].update({width: 1}))
    with pytest.raises(BundleError, match="knows 1 tokens, but the tokenizer has"):
        open_bundle(folder)
