"""Chat templates: written as they are, rendered by transformers as by plain jinja2, and never run by us."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import pytest
from click.testing import CliRunner

from gguf2st.cli.inspect import command as inspect
from gguf2st.tokenizer import build_tokenizer, plan_tokenizer, refused
from tests.vocabularies import CACHE, byte_level, load, write_files, write_gguf

TEMPLATE_FOLDER = CACHE / "llama.cpp-11434" / "models" / "templates"
TEMPLATES = sorted(path.name for path in TEMPLATE_FOLDER.glob("*.jinja"))

NEED_MORE = ("fireworks-ai-llama-3-firefunction-v2.jinja",)
"""Templates that render nothing without variables of their own."""

USER = {"role": "user", "content": "Hi  <b>there</b>\n"}
ANSWER = {"role": "assistant", "content": "Hello!"}
SYSTEM = {"role": "system", "content": "Be brief."}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where"}},
            "required": ["place"],
        },
    },
}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "weather", "arguments": {"place": "Łódź"}}}
RESULT = {"role": "tool", "name": "weather", "tool_call_id": "abcdefgh1", "content": "sunny"}
CONVERSATIONS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None]] = {
    "one turn": ([USER], None),
    "system": ([SYSTEM, USER], None),
    "more turns": ([USER, ANSWER, USER, ANSWER, {"role": "user", "content": "Bye"}], None),
    "tools": ([SYSTEM, USER], [TOOL]),
    "call": ([USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT], [TOOL]),
}


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which only marks a part."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _plain(source: str) -> jinja2.Template:
    """A template as jinja2 alone has it, with the functions that templates may expect."""
    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )

    def tojson(
        value: object, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment.filters["tojson"] = tojson
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": lambda f: datetime.now().strftime(f)}
    return environment.from_string(source)


@pytest.mark.oracle
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_with_plain_jinja2(name: str, tmp_path: Path) -> None:
    source = (TEMPLATE_FOLDER / name).read_text(encoding="utf-8")
    metadata = byte_level(("<s>", 3), ("</s>", 3), bos_token_id=258, eos_token_id=259) | {
        "tokenizer.chat_template": source
    }
    tokenizer = load(write_files(tmp_path, metadata))
    assert tokenizer.chat_template == source
    plain, problems = _plain(source), refused(source)
    rendered = 0
    for messages, tools in CONVERSATIONS.values():
        for generation in (True, False):
            values = {"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": generation}
            try:
                expected = plain.render(**values, **tokenizer.special_tokens_map)
            except Exception as error:  # a template may refuse a conversation, and does so under transformers too
                with pytest.raises(type(error)):
                    _apply(tokenizer, messages, tools, generation)
                continue
            if not problems:
                assert _apply(tokenizer, messages, tools, generation) == expected
                rendered += 1
    assert bool(rendered) is not (bool(problems) or name in NEED_MORE)


def _apply(tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, generation: bool) -> str:
    text: str = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=generation)
    return text


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{{ messages.__class__() }}", "attribute '__class__' (line 1)"),
        ("\n{{ ''._x() }}", "attribute '_x' (line 2)"),
        ("{% include 'x' %}", "it uses another template (line 1)"),
        ("{% import 'x' as y %}", "it uses another template (line 1)"),
        ("{% from 'x' import y %}", "it uses another template (line 1)"),
        ("{% extends 'x' %}", "it uses another template (line 1)"),
        ("{% set _ = messages.append(1) %}", "method 'append', which changes a value in place (line 1)"),
        ("{{ {}.update(a=1) }}", "method 'update', which changes a value in place (line 1)"),
        ("{% if %}", "it does not parse: Expected an expression, got 'end of statement block' (line 1)"),
        ("{% for m in messages %}", "it does not parse: Unexpected end of template."),
        ("{{ 'a' | nosuch }}", "unknown filter 'nosuch' (line 1)"),
        ("{{ 'a' is nosuch }}", "unknown test 'nosuch' (line 1)"),
        ("{% call(x) y() %}", "it does not parse"),
    ],
)
def test_what_transformers_refuses_is_said(template: str, problem: str, tmp_path: Path) -> None:
    metadata = byte_level() | {"tokenizer.chat_template": template}
    assert refused(template)[0].startswith(problem)
    note = next(note for note in plan_tokenizer(metadata).notes if "chat template" in note)
    assert note.startswith(f"transformers refuses the chat template: {problem}")
    tokenizer = load(write_files(tmp_path, metadata))
    with pytest.raises((jinja2.TemplateError, TypeError)):  # TypeError: there is no loader of templates
        _apply(tokenizer, [USER], None, False)


@pytest.mark.parametrize(
    "template",
    [
        "{% generation %}x{% endgeneration %}",
        "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{% break %}{% endfor %}",
        "{{ raise_exception('x') }}",
        "{{ messages | tojson(indent=2) }}",
        "{{ strftime_now('%Y') }}",
        "{{ ['a', 'b'] | join('-') }}",
    ],
)
def test_what_transformers_adds_is_no_problem(template: str) -> None:
    assert refused(template) == []


@pytest.mark.parametrize(
    "template",
    ["{{ 'a' * 10**12 }}", "{{ range(10**12) | list }}", "{% for i in range(10**12) %}x{% endfor %}", "{{ 9**9**9 }}"],
)
def test_a_template_is_not_run(template: str) -> None:
    """Neither by checking nor by building: these would take all memory or all time."""
    metadata = byte_level() | {"tokenizer.chat_template": template}
    plan_tokenizer(metadata)
    assert build_tokenizer(metadata).files["chat_template.jinja"] == template.encode()


def test_a_template_nested_too_deeply_is_said() -> None:
    assert refused("{{ " + "(" * 50_000 + " }}") == ["it is nested too deeply to parse"]


def test_inspect_shows_templates_and_what_is_refused_in_them(tmp_path: Path) -> None:
    template = "\n".join(f"line {i}\x1b[31m" for i in range(20)) + "{{ messages.append(1) }}"
    keys = {"tokenizer.chat_template": template, "tokenizer.chat_template.rag": "{{ messages[0].content }}"}
    path = write_gguf(tmp_path / "v.gguf", byte_level() | keys)
    shown = CliRunner().invoke(inspect, [str(path)])
    assert shown.exit_code == 0
    assert "line 5\\x1b[31m" in shown.output  # a terminal sequence is shown, not sent
    assert "line 6" not in shown.output.split("chat template")[-2]
    assert "transformers refuses: method 'append', which changes a value in place (line 20)" in shown.output
    assert "chat template rag (25 characters" in shown.output
    result = json.loads(CliRunner().invoke(inspect, [str(path), "--json"]).output)
    assert [(t["name"], t["template"], len(t["refused"])) for t in result["chat_templates"]] == [
        ("", template, 1),
        ("rag", "{{ messages[0].content }}", 0),
    ]


def test_a_template_named_default_does_not_take_the_place_of_the_unnamed_one(tmp_path: Path) -> None:
    """llama.cpp takes the unnamed one; transformers would take a file of that name first."""
    metadata = byte_level() | {"tokenizer.chat_template": "A", "tokenizer.chat_template.default": "B"}
    (note,) = (note for note in plan_tokenizer(metadata).notes if "template" in note)
    assert note.startswith("chat template 'default' is left out")
    tokenizer = load(write_files(tmp_path / "both", metadata))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "A"
    same = metadata | {"tokenizer.chat_template.default": "A"}
    assert not any("template" in note for note in plan_tokenizer(same).notes)
    alone = {key: value for key, value in metadata.items() if key != "tokenizer.chat_template"}
    tokenizer = load(write_files(tmp_path / "alone", alone))
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "B"
