"""Chat templates: text from a stranger. They are parsed here, never rendered and never compiled.

Compiling would already run parts of one: jinja2 computes constant expressions then.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gguf2st.errors import TokenizerError
from gguf2st.fold import few
from gguf2st.header.keys import brief
from gguf2st.tokenizer.vocab import COPY_HINT, Metadata, read_text

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_DIR = "additional_chat_templates"
DEFAULT = "default"
"""What transformers calls the template that has no other name."""
RERANK = "rerank"
"""What llama.cpp calls the prompt of a reranker: a text with {query} and {document} in it, no template of jinja2."""
_PLACES = tuple(
    (f"{{{role}}}", f'{{{{ messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first }}}}')
    for role in ("query", "document")
)
"""Place in such a text -> what stands in the same place in jinja2, of the messages that vLLM scores."""
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
MAX_TEMPLATES = 100
"""Most chat templates of a file, each of which becomes a file; models have up to four."""
MAX_PARSED_CHARS = 100_000
"""Characters of a file's templates that are looked through, which costs up to 10 us each; models' have 20,000."""

_CHANGES_IN_PLACE = frozenset(
    (
        *("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"),
        *("popitem", "setdefault", "update", "add", "discard"),
        *("difference_update", "intersection_update", "symmetric_difference_update"),
    )
)
"""Methods of lists, dicts and sets that jinja2's ImmutableSandboxedEnvironment refuses (jinja2/sandbox.py, 3.1)."""


def read_templates(metadata: Metadata) -> dict[str, str]:
    """Chat templates by name; the unnamed one has the name "".

    Raises TokenizerError for a template that is no text, a name that is no file name, or more than MAX_TEMPLATES.
    """
    templates = {}
    for key in metadata:
        if key != TEMPLATE_KEY and not key.startswith(TEMPLATE_KEY + "."):
            continue
        name = key[len(TEMPLATE_KEY) + 1 :]
        if key != TEMPLATE_KEY and not _TEMPLATE_NAME.fullmatch(name):
            raise TokenizerError(f"{brief(key)}: the name of the chat template cannot be a file name", hint=COPY_HINT)
        template = read_text(metadata, key)
        if template is not None:
            templates[name] = template
    if len(templates) > MAX_TEMPLATES:
        raise TokenizerError(
            f"the file has {len(templates):,} chat templates, more than {MAX_TEMPLATES}", hint=COPY_HINT
        )
    return templates


def written_templates(metadata: Metadata) -> dict[str, str]:
    """Those of `read_templates` that become files: one named `default` would go before the unnamed one.

    transformers takes it first (5.24, `from_pretrained`), llama.cpp the unnamed one (`llama_model_chat_template`).
    The prompt of a reranker is written as a template of jinja2.
    """
    templates = read_templates(metadata)
    written = {name: text for name, text in templates.items() if name != DEFAULT or "" not in templates}
    if is_prompt(written.get(RERANK, "")):
        written[RERANK] = _of_messages(written[RERANK])
    return written


def is_prompt(text: str) -> bool:
    """Whether a template is a text with places for query and document, in which jinja2 would find nothing to fill."""
    return all(place in text for place, _ in _PLACES) and not any(mark in text for mark in ("{{", "{%", "{#"))


def _of_messages(prompt: str) -> str:
    """The prompt of a reranker as a template that gives the same text, of messages with the roles query and document.

    vLLM makes such messages of what it scores (entrypoints/pooling/scoring/io_processor.py, 0.32). jinja2 takes one
    line end away at the end of a template.
    """
    for place, filled in _PLACES:
        prompt = prompt.replace(place, filled)
    return prompt + "\n" * prompt.endswith("\n")


def template_path(name: str) -> str:
    """Where transformers looks for a template, inside the checkpoint folder."""
    return f"{TEMPLATE_DIR}/{name}.jinja" if name else TEMPLATE_FILE


def template_notes(templates: Mapping[str, str]) -> Iterator[str]:
    """What the user should know about chat templates: that there are none, or what transformers will refuse in them."""
    if not templates:
        yield "no chat template in the file: none written"
    unnamed = templates.get("")
    if unnamed is not None and templates.get(DEFAULT, unnamed) != unnamed:
        yield f"chat template {DEFAULT!r} is left out: it is not the unnamed one, which transformers calls so"
    n_chars = 0
    for name, template in templates.items():
        shown = f"chat template {name!r}" if name else "the chat template"
        if name == RERANK and is_prompt(template):
            yield f"the prompt that the model judges is in {template_path(name)}: vllm serve DIR --chat-template FILE"
        n_chars += len(template)
        if n_chars > MAX_PARSED_CHARS:
            yield f"{shown} has {len(template):,} characters: it was not looked through"
        elif problems := refused(template):
            yield f"transformers refuses {shown}: {few(problems)}"


def refused(template: str) -> list[str]:
    """What the sandbox of transformers will refuse in a template, in the order it appears, each once.

    transformers renders with jinja2's ImmutableSandboxedEnvironment and no loader: attributes that start with `_`,
    methods that change a list or a dict, and other templates are refused there, and so is what does not parse. A
    template may still fail for what only shows when it runs. Nothing is said of one longer than MAX_PARSED_CHARS.
    """
    if len(template) > MAX_PARSED_CHARS:
        return []
    from jinja2 import TemplateError

    environment = _environment()
    try:
        tree = environment.parse(template)
    except TemplateError as error:
        return [f"it does not parse: {error.message} (line {getattr(error, 'lineno', '?')})"]
    except RecursionError:
        return ["it is nested too deeply to parse"]
    except ValueError as error:  # a number of thousands of digits
        return [f"it does not parse: {error}"]
    try:
        return list(dict.fromkeys(_refused(tree, environment)))
    except RecursionError:
        return ["it is nested too deeply to look through"]


def _refused(tree: "nodes.Template", environment: "Environment") -> Iterator[str]:
    from jinja2 import nodes

    for node in tree.find_all(nodes.Node):
        if isinstance(node, nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends):
            yield f"it uses another template (line {node.lineno})"
        elif isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            yield f"attribute {node.attr!r} (line {node.lineno})"
        elif isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr):
            if node.node.attr in _CHANGES_IN_PLACE:
                yield f"method {node.node.attr!r}, which changes a value in place (line {node.lineno})"
        elif isinstance(node, nodes.Filter) and node.name not in environment.filters:
            yield f"unknown filter {node.name!r} (line {node.lineno})"
        elif isinstance(node, nodes.Test) and node.name not in environment.tests:
            yield f"unknown test {node.name!r} (line {node.lineno})"


def _environment() -> "Environment":
    """The syntax that transformers knows: loop controls and its own `{% generation %}` block."""
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    return ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
