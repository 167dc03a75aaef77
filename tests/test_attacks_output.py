"""What people keep in the folder of a checkpoint is theirs, and a plan file of a stranger is not to be trusted."""

import json
import shutil
from pathlib import Path

import pytest

import gguf2st
from gguf2st.conversion import Options
from gguf2st.errors import OutputError
from tests.make_gguf import tiny_llama
from tests.oracle.terminal import run

KEPT = (
    "sub/x.gguf",
    "sub/mine.txt",
    "data.csv",
    "eval.jsonl",
    "training_state.json",
    "adapter_model.safetensors",
    ".env",
    "img.png",
    "README.md",
    "LICENSE",
    "model_ema.safetensors",
    "optimizer.pt",
    ".git/HEAD",
    "checkpoint-100/config.json",
    "1_Pooling/notes.txt",
    "additional_chat_templates/mine.txt",
    ".cache/mine",
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("source") / "m.gguf")


@pytest.fixture(scope="module")
def made(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "out"
    gguf2st.convert(source, out)
    return out


def checkpoint(made: Path, out: Path, *, ours: bool) -> Path:
    shutil.copytree(made, out)
    if not ours:
        (out / "gguf2st.json").unlink()
    return out


def put(folder: Path, name: str, text: str = "mine") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_beside_a_checkpoint_stays(
    name: str, ours: bool, source: Path, made: Path, tmp_path: Path
) -> None:
    out = checkpoint(made, tmp_path / "out", ours=ours)
    mine = put(out, name)
    with pytest.raises(OutputError, match=r"out holds '.*', which no conversion put there") as caught:
        gguf2st.convert(source, out, overwrite=True, dtype="float32")
    assert caught.value.exit_code == 6
    assert "move it away" in caught.value.hint
    assert mine.read_text() == "mine"
    assert json.loads((out / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "name", ["merges.txt", "model-00001-of-00002.safetensors", "additional_chat_templates/a.jinja"]
)
def test_a_file_that_was_added_to_our_checkpoint(name: str, source: Path, made: Path, tmp_path: Path) -> None:
    """Its gguf2st.json says that we did not write it, whatever its name."""
    out = checkpoint(made, tmp_path / "out", ours=True)
    mine = put(out, name)
    with pytest.raises(OutputError, match="which no conversion put there"):
        gguf2st.convert(source, out, overwrite=True)
    assert mine.read_text() == "mine"


def test_many_are_named_in_one_line(source: Path, made: Path, tmp_path: Path) -> None:
    out = checkpoint(made, tmp_path / "out", ours=True)
    for name in ("a", "b", "c/x", "d", "e", "f"):
        put(out, name)
    done = run("convert", source, "-o", out, "--overwrite")
    assert done.code == 6
    assert "holds 'a', 'b', 'c/', 'd', and 2 more, which no conversion put there" in done.err
    assert "move them away" in done.err
    assert not (tmp_path / "out.partial").exists()


def test_a_download_is_replaced(source: Path, made: Path, tmp_path: Path) -> None:
    """`hf download --local-dir` puts the repository's files and what it knows about them there."""
    out = checkpoint(made, tmp_path / "out", ours=False)
    for name in ("README.md", ".gitattributes", "merges.txt", "additional_chat_templates/a.jinja"):
        put(out, name)
        put(out, f".cache/huggingface/download/{name}.metadata")
    put(out, ".cache/huggingface/.gitignore", "*")
    gguf2st.convert(source, out, overwrite=True)
    assert sorted(p.name for p in out.iterdir()) == sorted(p.name for p in made.iterdir())


def test_shards_of_the_index_are_replaced(source: Path, tmp_path: Path) -> None:
    gguf2st.convert(source, tmp_path / "out", max_shard_size=100_000)
    assert (tmp_path / "out/model.safetensors.index.json").is_file()
    gguf2st.convert(source, tmp_path / "out", overwrite=True)
    assert not (tmp_path / "out/model.safetensors.index.json").exists()


@pytest.mark.parametrize("name", ["state.json", "adapter_model.safetensors", "x/config.json"])
def test_files_in_a_partial_folder_stay(name: str, source: Path, tmp_path: Path) -> None:
    mine = put(tmp_path / "out.partial", name)
    put(tmp_path / "out.partial", "journal", "")
    with pytest.raises(OutputError, match="holds files that no conversion writes: "):
        gguf2st.convert(source, tmp_path / "out")
    assert mine.read_text() == "mine"


def planned(source: Path, folder: Path) -> Path:
    """A plan file of two or more shards."""
    gguf2st.write_plan(source, folder / "p.plan", folder / "out", Options(max_shard_size=100_000))
    return folder / "p.plan"


PLAN_EDITS = {
    "another op with an argument too many": ('["unpermute",2]', '["flatten",2]'),
    "another op": ('["unpermute",2]', '["transpose"]'),
    "an op that nobody has": ('["unpermute",2]', '["conjure",2]'),
    "no op at all": ('["unpermute",2]', "[]"),
    "an op's name that is no text": ('["unpermute",2]', "[[1],2]"),
    "an argument that does not divide": ('["unpermute",2]', '["unpermute",7]'),
    "an argument that is none": ('["unpermute",2]', '["unpermute","2"]'),
    "division by zero": ('["unpermute",2]', '["swap",0,0]'),
    "rows beyond the end": ('["unpermute",2]', '["rows",5,100000]'),
    "fewer rows": ('["unpermute",2]', '["rows",0,2]'),
    "an op that joins": ('["unpermute",2]', '["interleave"]'),
    "an op that makes a tensor": ('["unpermute",2]', '["fill",1,64,64]'),
    "a whole number for a weight": ('"dtype":"bfloat16"', '"dtype":"int64"'),
    "a type that nobody reads": ('"F32"', '"F99"'),
    "another type": ('"F32"', '"F64"'),
}


@pytest.mark.parametrize("edit", PLAN_EDITS)
def test_a_plan_file_that_was_edited(edit: str, source: Path, tmp_path: Path) -> None:
    """A chain of ops runs on arrays: whatever does not fit is refused before, in one line, and nothing is written."""
    plan = planned(source, tmp_path)
    text, (old, new) = plan.read_text(), PLAN_EDITS[edit]
    assert old in text
    plan.write_text(text.replace(old, new))
    done = run("convert", "--plan", plan, "-q")
    assert done.code == 3
    assert done.err.startswith(f"error: {plan}")
    assert "Traceback" not in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["p.plan"]


def test_a_shard_that_is_a_link_is_no_shard(source: Path, tmp_path: Path) -> None:
    """The checkpoint would hold the link, and lose what it points to one day."""
    plan = planned(source, tmp_path)
    written = gguf2st.convert_planned(plan)
    shard = tmp_path / "out.partial" / written.shards[1]
    moved = shard.rename(tmp_path / "elsewhere.safetensors")
    shard.symlink_to(moved)
    with pytest.raises(OutputError) as caught:
        gguf2st.finish(plan)
    assert [line.partition(":")[0] for line in caught.value.problems] == [shard.name]
    again = gguf2st.convert_planned(plan)
    assert again.written == (shard.name,)
    out = Path(str(gguf2st.finish(plan).output))
    assert not [p for p in out.rglob("*") if p.is_symlink()]
    assert moved.is_file()


@pytest.mark.parametrize("what", ["link", "folder"])
def test_a_link_or_a_folder_among_the_shards(what: str, source: Path, tmp_path: Path) -> None:
    plan = planned(source, tmp_path)
    gguf2st.convert_planned(plan)
    stray = tmp_path / "out.partial/stray"
    stray.symlink_to(tmp_path, target_is_directory=True) if what == "link" else stray.mkdir()
    with pytest.raises(OutputError, match="holds 'stray', which this conversion did not write"):
        gguf2st.finish(plan)
    assert not (tmp_path / "out").exists()


def test_resuming_writes_a_linked_shard_again(source: Path, tmp_path: Path) -> None:
    plan = planned(source, tmp_path)
    written = gguf2st.convert_planned(plan)
    (tmp_path / "out.partial" / written.shards[0]).unlink()
    (tmp_path / "out.partial" / written.shards[0]).symlink_to(source)
    assert gguf2st.convert_planned(plan).written == (written.shards[0],)
