"""Targets that plan: what follows from a header, a tokenizer, an arch map, an expression, a plan of a stranger."""

import io
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from gguf2st import api
from gguf2st.archmap import mapfile
from gguf2st.header import Header, parse_header
from gguf2st.plan import build
from gguf2st.plan.as_json import from_json, to_json
from gguf2st.tokenizer import build_tokenizer
from tests.fuzz import ggufs, seeds, texts
from tests.fuzz.draft import STRING, Item
from tests.fuzz.harness import Files, write_input
from tests.fuzz.metadata import architecture, change_value, drop_item
from tests.fuzz.promises import MODEL, Refusals, encoded, mutated_gguf, quick_maps, require_message
from tests.fuzz.vocabulary import TOKENIZER

TEXT_TO_ENCODE = "Hello wörld,\n\n  12345 ﬁ 한국 <|im_end|></s> \t🙂 Ώ"


class PlanTarget:
    """A header that can be read, and everything that follows from it."""

    name = "plan"
    describes = "`make_plan`, `problems`"

    def make(self, rng: Random) -> Files:
        """Mutations of meaning: keys, values, tensors, tokenizer."""
        return {MODEL: mutated_gguf(rng, ggufs.MEANING, 0.1)}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: a plan without problems can be written and read back, and covers each output byte once."""
        quick_maps()
        write_input(files, folder)
        with Refusals():
            header = api.open_gguf(folder / MODEL)
        for code, line in api.problems(header):
            assert code in (3, 4)
            require_message(line)
        with Refusals():
            plan = api.make_plan(header, max_shard_size=20_000)
        text = to_json(plan)
        assert to_json(from_json(text)) == text
        for note in plan.notes:
            require_message(note)
        if plan.all_problems:
            return
        ends = [0] * len(plan.shards)
        for output in sorted((o for e in plan.entries for o in e.outputs), key=lambda o: (o.shard, o.start)):
            assert output.start == ends[output.shard]
            ends[output.shard] = output.stop
        assert ends == [shard.nbytes for shard in plan.shards]
        json.loads(json.dumps(plan.config, allow_nan=False))


class ArchitecturesTarget(PlanTarget):
    """The same from models of every architecture."""

    name = "architectures"
    describes = "`make_plan`, `problems`, on a model of each architecture as llama.cpp's converter writes it"

    def __init__(self, only: tuple[str, ...] = ()) -> None:
        """`only`: names of cases to start from, instead of all."""
        self.only = only

    def make(self, rng: Random) -> Files:
        """Mutations of meaning."""
        draft = seeds.case_draft(rng.choice(seeds.cases(self.only)))
        return {MODEL: encoded(draft, rng, ggufs.MEANING, 0.05)}


class TokenizerTarget:
    """A tokenizer built from whatever the metadata say."""

    name = "tokenizer"
    describes = "`build_tokenizer`"

    def make(self, rng: Random) -> Files:
        """Mutations of the tokenizer's keys."""
        return {MODEL: mutated_gguf(rng, (*TOKENIZER, *TOKENIZER, change_value, drop_item), 0.03)}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: `tokenizers` loads it, and encodes and decodes a text."""
        with Refusals():
            header = parse_header(io.BytesIO(files[MODEL]), MODEL)
            built = build_tokenizer(header.metadata)
        for note in built.notes:
            require_message(note)
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_buffer(built.files["tokenizer.json"])
        tokenizer.decode(tokenizer.encode(TEXT_TO_ENCODE).ids)
        for name, content in built.files.items():
            assert name == Path(name).as_posix()
            assert ".." not in Path(name).parts
            assert not Path(name).is_absolute()
            assert all(len(part.encode()) <= 255 for part in Path(name).parts), "a name that no file can have"
            if name.endswith(".json"):
                json.loads(content)


class MapTarget:
    """An arch map of a stranger."""

    name = "map"
    describes = "`make_plan` with an arch map of a stranger"

    def make(self, rng: Random) -> Files:
        """A map of the package with parts changed."""
        return {"map.toml": texts.arch_map(rng).encode("utf-8", "surrogatepass")}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: a plan."""
        write_input(files, folder)
        with Refusals():
            arch = mapfile.load_map(folder / "map.toml").arch
            plan = build.build(_header(arch), arch_map=folder / "map.toml")
        for line in (*plan.all_problems, *plan.notes):
            require_message(line)


@cache
def _header(arch: str) -> Header:
    """The header of a tiny model, under the name of any architecture."""
    drafts = {architecture(draft).decode(): draft for draft in seeds.drafts() if draft.rows}
    draft = drafts.get(arch) or drafts["llama"].copy()
    if arch not in drafts:
        draft.items = [item.changed(key=item.key.replace(b"llama.", arch.encode() + b".")) for item in draft.items]
        draft.put(Item(b"general.architecture", STRING, arch.encode()))
    return parse_header(io.BytesIO(draft.encode()), MODEL)


class ExpressionTarget:
    """An expression of a stranger."""

    name = "expression"
    describes = "`parse`, `evaluate`"

    def make(self, rng: Random) -> Files:
        """Something that may be an expression."""
        text = texts.expression(rng) if rng.random() < 0.5 else texts.plain_expression(rng)
        if rng.random() < 0.2:
            text = texts.broken_text(text, rng, texts.ATOMS)
        return {"expression.txt": text.encode("utf-8", "surrogateescape")}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: a value of metadata, never a thing of Python's."""
        from gguf2st.archmap.expr import evaluate, parse
        from gguf2st.archmap.scope import MapScope

        text = files["expression.txt"].decode("utf-8", "surrogateescape")
        with Refusals():
            expression = parse(text)
            header = _header("llama")
            amap = next(m for m in _all_maps() if m.name == "llama")
            if expression.calls - mapfile.CALLABLE:
                return  # a map with it would be refused
            value = evaluate(expression, MapScope(header, amap, lambda source: [1.0] * source.n_elements))
        assert isinstance(value, bool | int | float | str | list | dict | None), type(value)


@cache
def _all_maps() -> list[Any]:
    return mapfile.all_maps()


class PlanFileTarget:
    """plan.json of a stranger."""

    name = "plan-file"
    describes = "`from_json`"

    def make(self, rng: Random) -> Files:
        """A plan with parts changed."""
        return {"plan.json": texts.broken_json(rng.choice(_plans()), rng)}

    def run(self, files: Files, folder: Path) -> None:
        """Accepted: a plan that can be written again, and looked at."""
        with Refusals():
            plan = from_json(files["plan.json"].decode("utf-8", "replace"))
        assert from_json(to_json(plan)) == plan
        _ = plan.all_problems


@cache
def _plans() -> tuple[Any, ...]:
    headers = [parse_header(io.BytesIO(draft.encode()), MODEL) for draft in seeds.drafts() if draft.rows]
    return tuple(
        json.loads(to_json(api.make_plan(h, max_shard_size=20_000)))
        for h in headers
        if "rope_freqs.weight" not in h.sources
    )
