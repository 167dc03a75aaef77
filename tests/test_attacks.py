"""Faults that a hostile tester found once: each must stay found."""

import dataclasses
import json
import os
import shutil
import subprocess
import threading
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gguf2st
from gguf2st import api, execute
from gguf2st.archmap import expr, mapfile
from gguf2st.archmap.scope import MapScope
from gguf2st.cli.lines import printable
from gguf2st.config import generation_config
from gguf2st.errors import (
    CoverageError,
    Gguf2stError,
    HeaderError,
    MapError,
    OutputError,
    SourceError,
    TokenizerError,
)
from gguf2st.fold import fold, listing
from gguf2st.header import parse_header
from gguf2st.tokenizer import build_tokenizer, plan_tokenizer, read_templates, refused, special_tokens
from gguf2st.tokenizer.charsmap import read_charsmap
from gguf2st.tokenizer.templates import template_notes
from gguf2st.tokenizer.vocab import read_numbers
from tests.fuzz.seeds import drafts
from tests.make_gguf import tiny_llama, tiny_qwen3moe
from tests.oracle.terminal import GGUF2ST, run


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny_llama(tmp_path / "tiny.gguf", layers=3)


def test_a_source_that_changes_meanwhile(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwritten in place with the same size, while shards are written."""
    write = execute._write_shard

    def overwriting(*arguments: Any) -> Any:
        sums = write(*arguments)
        content = source.read_bytes()
        source.write_bytes(content[:-64] + bytes(64))
        return sums

    monkeypatch.setattr(execute, "_write_shard", overwriting)
    with pytest.raises(SourceError, match="changed while it was read"):
        gguf2st.convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_resuming_is_not_fooled_by_a_kept_time(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of the same layout and time of writing, put in place between two runs."""
    out, write = tmp_path / "out", execute._write_shard
    calls = []

    def failing(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(execute, "_write_shard", failing)
        with pytest.raises(KeyboardInterrupt):
            gguf2st.convert(source, out, max_shard_size=90_000)
    before = source.stat()
    other = tiny_llama(tmp_path / "other.gguf", layers=3, seed=7)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, source)
    gguf2st.convert(source, out, max_shard_size=90_000)
    assert gguf2st.verify(out, against=source).ok


@pytest.mark.parametrize("where", ["out", "out.partial"])
def test_the_source_is_never_inside_the_output(where: str, tmp_path: Path) -> None:
    folder = tmp_path / where
    folder.mkdir()
    source = tiny_llama(folder / "tiny.gguf")
    (folder / "config.json").write_text("{}")
    with pytest.raises(OutputError, match="holds the source"):
        gguf2st.convert(source, tmp_path / "out", overwrite=True)
    assert source.exists()


def test_a_partial_folder_of_somebody_else_is_left_alone(source: Path, tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    (partial / "mine.safetensors").write_text("mine")
    with pytest.raises(OutputError, match="somebody else's folder"):
        gguf2st.convert(source, tmp_path / "out")
    assert (partial / "mine.safetensors").read_text() == "mine"
    shutil.rmtree(partial)
    (tmp_path / "elsewhere").mkdir()
    partial.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="is a link"):
        gguf2st.convert(source, tmp_path / "out")


def test_heads_that_cannot_share_keys(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "tiny.gguf", heads=4, kv_heads=3)
    with pytest.raises(CoverageError, match="4 attention heads cannot share 3 key-value heads"):
        gguf2st.convert(source, tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("scores", ["1", "2"]),
        ("scores", [True, False]),
        ("token_type", array("f", [1.0, float("nan")])),
        ("token_type", array("f", [1.0, float("inf")])),
        ("token_type", [1.7, 1.0]),
        ("token_type", [-1, 1]),
    ],
)
def test_per_token_arrays_of_the_wrong_kind(key: str, values: Any) -> None:
    with pytest.raises(TokenizerError, match=key):
        read_numbers({f"tokenizer.ggml.{key}": values}, key, 2)


@pytest.mark.parametrize("template", ["{{ a" + ".b" * 3000 + " }}", "{{ " + "9" * 5000 + " }}", "{{ " + "(" * 5000])
def test_templates_that_break_the_parser(template: str) -> None:
    assert refused(template)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"temp": 0.0}, {"do_sample": False}),
        ({"temp": -5.0}, {}),
        ({"top_k": -3}, {}),
        ({"top_p": 7.0}, {}),
        ({"penalty_repeat": 0.0}, {}),
        ({"temp": 0.7, "top_p": 2.0}, {"do_sample": True, "temperature": 0.7}),
    ],
)
def test_sampling_that_transformers_would_refuse(metadata: dict[str, float], expected: dict[str, Any]) -> None:
    tokens = special_tokens({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a"]})
    assert generation_config(tokens, {f"general.sampling.{k}": v for k, v in metadata.items()}) == expected


def _checkpoint(source: Path, folder: Path) -> Path:
    gguf2st.convert(source, folder)
    return folder


def test_a_tokenizer_that_cannot_be_loaded(source: Path, tmp_path: Path) -> None:
    out = _checkpoint(source, tmp_path / "out")
    whole = json.loads((out / "tokenizer.json").read_text())
    (out / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": whole["model"]["vocab"]}, "added_tokens": whole["added_tokens"]})
    )
    assert any("cannot be loaded" in p for p in gguf2st.verify(out, against=source).problems)
    with pytest.raises(TokenizerError, match="cannot be loaded"):
        gguf2st.convert(source, tmp_path / "again", tokenizer_from=out)


def test_no_tensors_at_all(source: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    out = _checkpoint(source, tmp_path / "out")
    save_file({}, out / "model.safetensors", {"format": "pt"})
    assert "there are no tensors" in gguf2st.verify(out).problems


def test_a_pipe_where_a_file_should_be(source: Path, tmp_path: Path) -> None:
    out = _checkpoint(source, tmp_path / "out")
    os.mkfifo(out / "extra.safetensors")
    (out / "config.json").unlink()
    os.mkfifo(out / "config.json")
    assert {"extra.safetensors is no regular file", "config.json is no regular file"} <= set(
        gguf2st.verify(out).problems
    )


def test_absurd_layer_numbers(source: Path, tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import load_file, save_file

    out = _checkpoint(source, tmp_path / "out")
    gguf2st.convert(source, tmp_path / "f32", dtype="float32")
    tensors = load_file(tmp_path / "f32/model.safetensors")
    tensors["model.layers.4000000000.x.weight"] = np.zeros(1, np.float32)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    assert any("a number that no model has" in p for p in gguf2st.verify(out).problems)


class _Sparse:
    """A file of 3 GB that is all one metadata string, without its bytes."""

    def __init__(self) -> None:
        key = b"k" * 8
        self.start = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little")
        self.start += len(key).to_bytes(8, "little") + key + (8).to_bytes(4, "little") + (2 << 30).to_bytes(8, "little")
        self.size, self.pos = 3 << 30, 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self.pos = offset if whence == 0 else self.size + offset
        return self.pos

    def tell(self) -> int:
        return self.pos

    def read(self, n: int) -> bytes:
        assert n < 64 << 20, "a whole gigabyte would be read"
        data = self.start[self.pos : self.pos + n].ljust(min(n, self.size - self.pos), b"\0")
        self.pos += len(data)
        return data


def test_a_length_that_would_read_a_whole_model() -> None:
    with pytest.raises(HeaderError, match="no header is so long"):
        parse_header(_Sparse(), "big.gguf")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tiny.gguf", "sha256-0123"])
def test_a_report_never_takes_the_place_of_the_source(name: str, source: Path) -> None:
    """Whatever the source is called: blobs of other programs have no suffix."""
    from click.testing import CliRunner

    from gguf2st.cli import cli

    source = source.rename(source.with_name(name))
    result = CliRunner().invoke(cli, ["convert", str(source), "--dry-run", "--json", str(source)])
    assert result.exit_code == 2
    assert api.open_gguf(source).sources


def test_escapes_of_a_terminal_are_shown_not_obeyed() -> None:
    assert printable("a\x1b[31mb\x07") == "a\\x1b[31mb\\x07"


def test_a_vocabulary_whose_merges_would_fill_the_disk() -> None:
    letters = ["a" * n for n in range(1, 1025)]
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256)), *letters]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": array("f", range(len(tokens))),
        "tokenizer.ggml.token_type": array("i", [2, *[6] * 256, *[1] * len(letters)]),
        "tokenizer.ggml.add_bos_token": False,
    }
    with pytest.raises(TokenizerError, match="no real one comes near"):
        plan_tokenizer(metadata)


# --- found by fuzzing -------------------------------------------------------------------------------------------------


def _charsmap(raw: bytes) -> dict[str, Any]:
    return {"tokenizer.ggml.precompiled_charsmap": array("B", raw)}


def _compiled() -> bytes:
    """A map that SentencePiece compiled, of three rules."""
    draft = drafts()[-1]
    return bytes(draft.items[draft.find(b"tokenizer.ggml.precompiled_charsmap")].value.items)


def test_maps_of_characters_that_lead_outside() -> None:
    """`tokenizers` follows them without looking, and ends the process: each is refused before it is written."""
    good = _compiled()
    assert read_charsmap(_charsmap(good)) == good
    n_units = int.from_bytes(good[:4], "little") // 4
    text = good[4 + 4 * n_units :]
    places = [i for i in range(n_units) if good[4 + 4 * i + 3] & 0x80]
    assert places, "no unit holds a place"

    def with_unit(at: int, unit: int) -> bytes:
        return good[: 4 + 4 * at] + unit.to_bytes(4, "little") + good[8 + 4 * at :]

    for broken, said in (
        (with_unit(0, 0x3FFFFF << 10), f"unit 4194303 of {n_units}"),
        (with_unit(places[0], 1 << 31 | len(text)), f"byte {len(text)} of {len(text)}"),
        (with_unit(places[0], 1 << 31 | 2**30), "of the replacements"),
        (good[:-1] + b"\xff\0", "not UTF-8"),
        ((2**20).to_bytes(4, "little") + good[4:], "a trie of 1048576"),
        (good[:-1], "a trie of"),
        (b"\1\0\0\0\0\0", "a trie of 1"),
    ):
        with pytest.raises(TokenizerError, match=said):
            read_charsmap(_charsmap(broken))
    middle = with_unit(places[0], 1 << 31 | text.index("Ω".encode()) + 1)
    with pytest.raises(TokenizerError, match="of the replacements"):
        read_charsmap(_charsmap(middle))


def test_an_unknown_token_that_is_a_normal_one(tmp_path: Path) -> None:
    """WordPiece spells it in another way than the file; all names must be spelled as tokenizer.json does."""
    from tokenizers import Tokenizer

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "ing", "<unk>"]
    metadata = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": array("i", [3, 3, 3, 3, 1, 1, 2]),
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }
    for unknown, spelled in ((4, "the"), (5, "##ing"), (6, "##<unk>")):
        built = build_tokenizer(metadata | {"tokenizer.ggml.unknown_token_id": unknown})
        tokenizer = Tokenizer.from_buffer(built.files["tokenizer.json"])
        assert tokenizer.encode("zzz", add_special_tokens=False).ids == [unknown]
        assert tokenizer.id_to_token(unknown) == spelled
        named = json.loads(built.files["special_tokens_map.json"])
        assert all(tokenizer.token_to_id(token) is not None for token in named.values()), named


def test_a_template_too_long_to_look_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing costs 10 us a character; it is written as it is, and somebody is told."""
    from jinja2 import Environment

    parsed = []
    monkeypatch.setattr(Environment, "parse", lambda self, text: parsed.append(text))
    template = "{{ x._secret }}" * 200_000
    assert list(template_notes({"": template})) == [
        "the chat template has 3,000,000 characters: it was not looked through"
    ]
    assert refused(template) == []
    assert parsed == []


def test_what_is_refused_in_a_template_is_counted(source: Path) -> None:
    (note,) = template_notes({"": "".join(f"{{{{ x._{i} }}}}" for i in range(5_000))})
    assert "and 4992 more" in note
    assert len(note) < 1_000


def test_a_thousand_templates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each becomes a file, and each is parsed: together no more than one long one."""
    many = {f"tokenizer.chat_template.t{i}": "{{ x._y }}" for i in range(101)}
    with pytest.raises(TokenizerError, match="101 chat templates"):
        read_templates(many)
    few = {f"t{i}": "{{ x._y }}" + " " * 40_000 for i in range(5)}
    said = list(template_notes(few))
    assert [note.split(": ")[0].split()[0] for note in said] == ["transformers"] * 2 + ["chat"] * 3
    assert said[-1] == "chat template 't4' has 40,010 characters: it was not looked through"


@pytest.mark.parametrize("lengths", [range(1, 200), [1, 5_000]])
def test_runs_of_newlines_that_would_take_for_ever(lengths: Any) -> None:
    tokens = [*(f"<0x{b:02X}>" for b in range(256)), *("\n" * n for n in lengths)]
    metadata = {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": array("i", [6] * 256 + [1] * len(lengths)),
        "tokenizer.ggml.merges": ["\n \n"] if 2 in lengths else [],
        "tokenizer.ggml.bos_token_id": 0,
    }
    with pytest.raises(TokenizerError, match=r"runs of newlines are tokens, up to \d+ long: too many"):
        plan_tokenizer(metadata)


@pytest.mark.parametrize("name", ["x" * 300, "..", "a/b", "", ".hidden", "é", "a\0b"])
def test_names_of_templates_are_known_before(name: str, tmp_path: Path) -> None:
    """`check` says what the conversion would only find at its end: that no file can have the name."""
    source = tiny_llama(tmp_path / "m.gguf", extra_metadata={f"tokenizer.chat_template.{name}": "x"})
    (problem,) = api.problems(source)
    assert "cannot be a file name" in problem[1]
    with pytest.raises(TokenizerError, match="cannot be a file name"):
        gguf2st.convert(source, tmp_path / "out")


def test_keys_of_the_tokenizer_that_nothing_reads(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.suppress_tokens": np.array([7, 3, 10**6, -1], np.int32)}
    source = tiny_llama(tmp_path / "m.gguf", extra_metadata=metadata | {"tokenizer.ggml.mystery": "x" * 500})
    report = gguf2st.convert(source, tmp_path / "out")
    (note,) = [note for note in report.notes if "not used" in note]
    assert note.startswith("tokenizer keys of the file that are not used: tokenizer.ggml.mystery = 'xxx")
    assert len(note) < 200
    written = json.loads((tmp_path / "out/generation_config.json").read_text())
    assert written["suppress_tokens"] == [7, 3]  # llama.cpp leaves out ids that do not exist, too


def test_keys_without_number(source: Path) -> None:
    header = api.open_gguf(source)
    many = {f"llama.unread{i}.{'k' * 1_000}": "v" * 1_000 for i in range(30_000)}
    (line,) = api.make_plan(dataclasses.replace(header, metadata=header.metadata | many)).all_problems
    assert line.endswith("and 29980 more")
    assert len(line) < 2_100


def test_names_with_thousands_of_numbers() -> None:
    """Each number of a name costs a level of recursion."""
    deep = ".".join("1" for _ in range(5_000))
    assert fold([deep, "a.0", "a.1"]) == [deep, "a.{0..1}"]
    assert len(listing([deep])) < 300


@pytest.mark.parametrize("layers", [501, 9_999])
def test_a_small_file_that_promises_many_layers(layers: int, tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m.gguf", extra_metadata={"llama.block_count": layers})
    plan = api.make_plan(source)
    assert any(f"is {layers}; the file has fewer tensors" in line for line in plan.all_problems)
    assert len(plan.missing) < 10, "a line, and not an entry for each layer"


def test_a_small_file_that_promises_many_experts(tmp_path: Path) -> None:
    keys = {"qwen3moe.expert_count": 10_000, "qwen3moe.block_count": 4}
    plan = api.make_plan(tiny_qwen3moe(tmp_path / "m.gguf", extra_metadata=keys))
    assert any("4 layers of 10000 experts: no model has so many" in line for line in plan.all_problems)
    assert len(plan.missing) < 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("9223372036854775807 * 3", "beyond 64 bits"),
        ("9e18 * 9e18", "beyond 64 bits"),
        ("-9223372036854775807 - 2", "beyond 64 bits"),
        ("rope(9223372036854775807)", "more than 16777216"),
    ],
)
def test_numbers_that_grow_without_bound(text: str, said: str, source: Path) -> None:
    """Long integers cannot be written as decimals, infinities are no JSON, and lists of that length no memory holds."""
    header = api.open_gguf(source)
    amap = mapfile.load_map(mapfile.maps_folder() / "llama.toml")
    with pytest.raises(MapError, match=said):
        expr.evaluate(expr.parse(text), MapScope(header, amap, lambda s: []))


def test_an_expression_makes_no_warnings(recwarn: pytest.WarningsRecorder) -> None:
    expr.parse("1or 2 if 3else 4")
    assert not recwarn.list


def test_a_map_that_spreads_a_number(source: Path, tmp_path: Path) -> None:
    text = (mapfile.maps_folder() / "llama.toml").read_text(encoding="utf-8")
    path = tmp_path / "own.toml"
    path.write_text(text.replace("[config]\n", '[config]\n"*spread" = "block_count"\n', 1), encoding="utf-8")
    assert any("is to give keys and values" in line for line in api.make_plan(source, arch_map=path).all_problems)


@pytest.mark.parametrize(
    "text", ["a = " + "9" * 6_000, "a = " + "[" * 5_000, b"\xff\xfe", "a = 1979-99-99", "a = 1\na = 2", "[a]\n[a]"]
)
def test_what_is_no_arch_map(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(MapError, match="not valid TOML") as caught:
        mapfile.load_map(path)
    assert len(caught.value.message) < 2_100


def test_notes_of_a_map_have_an_end(source: Path, tmp_path: Path) -> None:
    text = (mapfile.maps_folder() / "llama.toml").read_text(encoding="utf-8")
    path = tmp_path / "own.toml"
    path.write_text(f'{text}\n[assumed.mystery]\nvalue = 1\nwhy = "{"x" * 100_000}"\n', encoding="utf-8")
    (note,) = [note for note in api.make_plan(source, arch_map=path).notes if "mystery" in note]
    assert len(note) < 2_100


@pytest.mark.parametrize("left", [None, 0, 40_000])
def test_factors_that_are_gone_since_the_header_was_read(left: int | None, tmp_path: Path) -> None:
    factors = np.array([1.0, 1.5, 8.0, 8.0, 8.0, 8.0, 8.0, 8.0], np.float32)
    source = tiny_llama(tmp_path / "m.gguf", extra_tensors={"rope_freqs.weight": factors})
    header = api.open_gguf(source)
    source.unlink() if left is None else os.truncate(source, left)
    said = "m.gguf cannot be read: No such file" if left is None else "m.gguf ended inside tensor 'rope_freqs.weight'"
    assert any(said in line for line in api.make_plan(header).all_problems)


@pytest.mark.parametrize("name", ["tokenizer.model", "sub/x.json", "x.json", "consolidated.safetensors", "-rf"])
def test_what_lies_in_a_partial_folder_does_not_end_in_the_checkpoint(name: str, source: Path, tmp_path: Path) -> None:
    """A tokenizer of somebody else would be read by a loader. It stays where it is, and so do the finished shards."""

    partial = tmp_path / "out.partial"
    seen = 0

    def late(nbytes: int, total: int) -> None:
        nonlocal seen
        seen += nbytes
        if seen > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gguf2st.convert(source, tmp_path / "out", max_shard_size=50_000, threads=1, progress=late)
    (partial / name).parent.mkdir(exist_ok=True)
    (partial / name).write_text("mine")
    with pytest.raises(OutputError, match="which this conversion did not write"):
        gguf2st.convert(source, tmp_path / "out", max_shard_size=50_000)
    assert (partial / name).read_text() == "mine"
    (partial / name).unlink()
    if "/" in name:
        (partial / name).parent.rmdir()
    report = gguf2st.convert(source, tmp_path / "out", max_shard_size=50_000)
    assert any("were finished by an earlier run" in note for note in report.notes)


@pytest.mark.parametrize(
    "line", [b"[" * 100_000, b"\xff\xfe\0", b'{"shard": "../../x", "sums": {}}', b"NaN", b"{}", b"1e999"]
)
def test_lines_of_a_journal_that_say_nothing(line: bytes, tmp_path: Path) -> None:
    from gguf2st.output.folder import OutputFolder

    with OutputFolder(tmp_path / "out", "the plan") as folder:
        (folder.partial / "a.safetensors").write_bytes(b"x")
        folder.mark("a.safetensors", {})
    journal = tmp_path / "out.partial/journal"
    journal.write_bytes(line + b"\n" + journal.read_bytes() + line)
    with OutputFolder(tmp_path / "out", "the plan") as folder:
        assert list(folder.finished) == ["a.safetensors"]


# --- the command line, and the system around it -----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["loop", "loop/x", "tiny.gguf/x", "x" * 300])
def test_targets_that_cannot_be(target: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "pool")
    (tmp_path / "pool").symlink_to(tmp_path / "loop")
    done = run("convert", source, "-o", tmp_path / target)
    assert done.code == 6, done
    assert done.err.startswith("error: ")
    assert "Traceback" not in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["loop", "pool", "tiny.gguf"]


def _shell(redirection: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run with its standard streams redirected as a shell does it."""
    command = [*GGUF2ST, *map(str, arguments)]
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", ["check", "inspect", "inspect --json", "plan", "convert --dry-run", "--help"])
def test_a_full_standard_output(command: str, source: Path) -> None:
    name, *options = command.split()
    done = _shell(">/dev/full", name, *([source] if name[0] != "-" else []), *options)
    assert done.returncode == 6
    error, hint = done.stderr.splitlines()
    assert error == "error: standard output takes no more: No space left on device"
    assert hint.startswith("hint: free some space")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [(("convert", "absent.gguf"), 3), (("frobnicate",), 2)])
def test_errors_that_nobody_can_read(redirection: str, arguments: tuple[str, ...], code: int) -> None:
    done = _shell(redirection, *arguments)
    assert (done.returncode, done.stdout) == (code, "")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(redirection: str, source: Path, tmp_path: Path) -> None:
    """The next file to be opened would get the number of a closed stream, and what libraries print would end in it."""
    done = _shell(redirection, "convert", source, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert gguf2st.verify(tmp_path / "out", against=source).ok


def test_names_that_are_no_text(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "b\udcffd.gguf")
    out = tmp_path / "o\udcfft"
    done = run("convert", source, "-o", out, "--json", tmp_path / "report.json")
    assert done.code == 0, done
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert os.fsencode(report["files"][0]) == os.fsencode(source)
    assert os.fsencode(report["output"]) == os.fsencode(out)
    again = run("convert", source, "-o", out, "--overwrite", "--json", "-")
    assert json.loads(again.out)["files"] == report["files"]
    verified = run("verify", out, "--against", source, "--json")
    assert json.loads(verified.out)["ok"], verified
    assert run("inspect", source, "--json").code == run("check", source).code == 0


def test_numbers_that_json_has_not(tmp_path: Path) -> None:
    metadata = {"general.x": np.float32("nan"), "general.y": np.array([1, np.inf], np.float32)}
    done = run("inspect", tiny_llama(tmp_path / "m.gguf", extra_metadata=metadata), "--json")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    found = json.loads(done.out, parse_constant=refuse)["metadata"]
    assert (found["general.x"], found["general.y"]) == ("nan", [1.0, "inf"])


@pytest.mark.parametrize("megabytes", [350, 500])
def test_too_little_memory_is_said(megabytes: int, source: Path, tmp_path: Path) -> None:
    """LLVM would end the process with bad_alloc."""
    limited = subprocess.run(
        ["bash", "-c", f'ulimit -v {megabytes * 1000} && exec "$@"', "bash", *GGUF2ST, "convert", str(source),
         "-o", str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert limited.returncode == 1
    assert limited.stderr.startswith(f"error: this process may map {megabytes * 1.024:.0f} MB of memory (`ulimit -v`)")
    assert not (tmp_path / "out.partial").exists()


@pytest.mark.parametrize("granted", [0, 1, 3])
def test_threads_that_the_system_does_not_grant(
    granted: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ulimit -u` and cgroups limit them; fewer do the same work."""
    start, started = threading.Thread.start, []

    def limited(thread: threading.Thread) -> None:
        if len(started) >= granted:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    gguf2st.convert(source, tmp_path / "expected")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", limited)
        gguf2st.convert(source, tmp_path / "out", threads=256)
    assert len(started) == granted
    for path in (tmp_path / "expected").iterdir():
        if path.name != "gguf2st.json":
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize(("value", "said"), [(1e300, "beyond the range of float32"), (np.nan, "NaN or infinite")])
def test_a_double_that_no_checkpoint_holds(value: float, said: str, tmp_path: Path) -> None:
    weights = np.full((32, 64), 0.5)
    weights[3, 5] = value
    source = tiny_llama(tmp_path / "m.gguf", kv_heads=2, extra_tensors={"blk.1.attn_k.weight": weights})
    with pytest.raises(Gguf2stError, match=said):
        gguf2st.convert(source, tmp_path / "out", dtype="float32")
