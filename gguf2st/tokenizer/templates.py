"""Chat templates: text from a stranger. They are parsed here, never rendered and never compiled.

Compiling would already run parts of one: jinja2 computes constant expressions then.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gguf2st.errors import TokenizerError
from gguf2st.tokenizer.vocab import Metadata, read_text

if TYPE_CHECKING:
    from jinja2 import Environment, nodes

TEMPLATE_KEY = "tokenizer.chat_template"
TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_DIR = "additional_chat_templates"
_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

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

    Raises TokenizerError for a template that is no text, or a name that is no file name.
    """
    templates = {}
    for key in metadata:
        if key != TEMPLATE_KEY and not key.startswith(TEMPLATE_KEY + "."):
            continue
        name = key[len(TEMPLATE_KEY) + 1 :]
        if key != TEMPLATE_KEY and not _TEMPLATE_NAME.fullmatch(name):
            raise TokenizerError(f"{key!r}: the name of the chat template cannot be a file name")
        template = read_text(metadata, key)
        if template is not None:
            templates[name] = template
    return templates


def template_path(name: str) -> str:
    """Where transformers looks for a template, inside the checkpoint folder."""
    return f"{TEMPLATE_DIR}/{name}.jinja" if name else TEMPLATE_FILE


def refused(template: str) -> list[str]:
    """What the sandbox of transformers will refuse in a template, in the order it appears, each once.

    transformers renders with jinja2's ImmutableSandboxedEnvironment and no loader: attributes that start with `_`,
    methods that change a list or a dict, and other templates are refused there, and so is what does not parse. A
    template may still fail for what only shows when it runs.
    """
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
