"""What quantization_config promises of each module, read as vLLM and as transformers read it.

vLLM 0.32 (compressed_tensors.py, utils.py there): names in `ignore` and `targets` are module names, regular expressions
after "re:" that must match from the start, or names of classes, of which only "Linear" matters here. The first target
that matches decides; a class counts only where no name matches. Projections that vLLM loads as one parameter are first
looked up under their common name (`qkv_proj`), then member by member.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

LAYOUTS = {"pack-quantized": "int", "mxfp4-pack-quantized": "mxfp4", "nvfp4-pack-quantized": "nvfp4"}
"""compressed-tensors' names of packed formats -> ours. All its other formats keep `weight` and add `weight_scale`."""

NO_LINEAR = frozenset(
    {
        "lm_head",
        "embed_out",
        "output",
        "embed_tokens",
        "embed_in",
        "embed_positions",
        "embeddings",
        "word_embeddings",
        "position_embeddings",
        "token_type_embeddings",
        "tok_embeddings",
        "wte",
        "wpe",
    }
)
"""Last names of heads and embeddings, whose classes in vLLM (ParallelLMHead, VocabParallelEmbedding) no target
"Linear" means: only by name can they be packed. In transformers a head is a linear layer like any other."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a weight lies in the file.

    Attributes:
        layout: "int", "mxfp4" or "nvfp4" (compressed-tensors), "gpt-oss" (`_blocks`, `_scales`), or "scaled": an
            unpacked `weight` beside its `weight_scale`.
        bits, symmetric: of integers; an asymmetric format has zero points.
        group: columns that share a scale; 0 when a whole row does.
    """

    layout: str
    bits: int = 4
    symmetric: bool = True
    group: int = 32

    def __str__(self) -> str:
        if self.layout == "scaled":
            return f"{self.bits} bits, not packed"
        if self.layout != "int":
            return self.layout
        return f"int{self.bits} {'sym' if self.symmetric else 'asym'} {f'g{self.group}' if self.group else 'channel'}"


@dataclass(frozen=True, slots=True)
class Target:
    """One item of a config group's `targets`."""

    pattern: str
    format: Format
    group: str


class Patterns:
    """Names and regular expressions in an order; a full name is found without trying the others."""

    def __init__(self, items: Iterable[str]) -> None:
        self.items = tuple(items)
        self._names: dict[str, int] = {}
        self._expressions: list[tuple[int, re.Pattern[str]]] = []
        for number, item in enumerate(self.items):
            if item.startswith("re:"):
                self._expressions.append((number, re.compile(item[3:])))
            else:
                self._names.setdefault(item, number)

    def exact(self, name: str) -> int | None:
        """The number of the item that is `name`."""
        return self._names.get(name)

    def first(self, name: str) -> int | None:
        """The number of the first item that is `name`, or whose expression matches it from its beginning."""
        exact = self._names.get(name)
        for number, expression in self._expressions:
            if exact is not None and exact < number:
                break
            if expression.match(name):
                return number
        return exact


@dataclass(frozen=True)
class Rules:
    """quantization_config as far as it can be read.

    Attributes:
        method: quant_method.
        targets: of all config groups, in their order.
        ignore: names and patterns that stay 16-bit.
        modules: names of the checkpoint's modules; a target that is none of them, and no pattern, names a class.
    """

    method: str
    targets: tuple[Target, ...] = ()
    ignore: tuple[str, ...] = ()
    modules: frozenset[str] = frozenset()

    @cached_property
    def _ignore(self) -> Patterns:
        return Patterns(self.ignore)

    @cached_property
    def _targets(self) -> Patterns:
        return Patterns(target.pattern for target in self.targets)

    def ignored(self, name: str) -> bool:
        """Whether the module stays 16-bit whatever targets it."""
        return self._ignore.first(name) is not None

    def named(self, name: str) -> Target | None:
        """The first target that is the module's name, or a pattern that matches it."""
        number = self._targets.first(name)
        return None if number is None else self.targets[number]

    @cached_property
    def linear(self) -> Target | None:
        """The target that takes every linear layer which no other names."""
        return next((t for t in self.targets if t.pattern.lower() == "linear"), None)

    def of(self, name: str) -> Format | None:
        """The format that vLLM reads a module in by itself; None when it stays 16-bit."""
        by_class = None if name.rpartition(".")[2] in NO_LINEAR else self.linear
        target = None if self.ignored(name) else self.named(name) or by_class
        return target.format if target else None

    def exact_first(self, name: str) -> Format | None:
        """The format that transformers reads a linear layer in: a full name goes before patterns of any place."""
        if self.ignored(name):
            return None
        exact = self._targets.exact(name)
        target = (self.named(name) or self.linear) if exact is None else self.targets[exact]
        return target.format if target else None

    def experts(self) -> Format | None:
        """The format in which transformers 5.24 reads all experts: that of the first group with a pattern that says
        "experts", else of the first with a full name or class, else of the first.
        """
        groups: dict[str, list[Target]] = {}
        for target in self.targets:
            groups.setdefault(target.group, []).append(target)
        patterns = [g for g in groups.values() if any(t.pattern[:3] == "re:" and "experts" in t.pattern for t in g)]
        names = [g for g in groups.values() if any(t.pattern[:3] != "re:" for t in g)]
        first = next(iter([*patterns, *names, *groups.values()]), None)
        return first[0].format if first else None

    def fused(self, name: str, members: Sequence[str]) -> tuple[Format | None, str]:
        """(format that vLLM takes for members loaded as the one module `name`, the pattern that names it directly).

        The pattern is "" where the members decide.
        """
        if (number := self._ignore.first(name)) is not None:
            return None, self.ignore[number]
        if all(self.ignored(m) for m in members):
            return None, ""
        if target := self.named(name):
            return target.format, target.pattern
        found = [self.named(m) for m in members]
        first = found[0] if all(found) else self.linear
        return first.format if first else None, ""


def read_rules(config: Mapping[str, Any], modules: Iterable[str], problems: list[str]) -> Rules | None:
    """quantization_config of config.json; None without one.

    Args:
        config: config.json.
        modules: names of the checkpoint's modules.
        problems: gets what vLLM or transformers would refuse or misread.
    """
    stated = config.get("quantization_config")
    if stated is None:
        return None
    if not isinstance(stated, dict):
        problems.append("quantization_config is no object")
        return Rules("")
    method = str(stated.get("quant_method", ""))
    if method == "mxfp4":
        skipped = stated.get("modules_to_not_convert")
        return Rules(method, ignore=_strings(skipped) or ())
    if method != "compressed-tensors":
        return Rules(method)
    status = stated.get("quantization_status")
    if status != "compressed":
        problems.append(
            f"quantization_status is {status!r}, not 'compressed': transformers would look for unpacked weights and "
            "fill them with random numbers"
        )
    ignore = _patterns("ignore", stated.get("ignore") or [], problems)
    groups = stated.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        problems.append("quantization_config has no config_groups")
        groups = {}
    targets: list[Target] = []
    for name, group in groups.items():
        targets += _targets(str(name), group, stated.get("format"), problems)
    if twice := sorted(pattern for pattern, n in Counter(t.pattern for t in targets).items() if n > 1):
        problems.append(f"config_groups names these targets twice: {', '.join(twice[:5])}")
    return Rules(method, tuple(targets), tuple(ignore), frozenset(modules))


def _targets(name: str, group: Any, common: Any, problems: list[str]) -> Iterator[Target]:
    """The targets of one config group; none, and a problem, where it cannot be read."""
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        problems.append(f"config group {name} says nothing about weights")
        return
    weights, layout_name = group["weights"], group.get("format") or common
    try:
        found = _format(weights, layout_name)
    except ValueError as err:
        problems.append(f"config group {name}: {err}")
        return
    patterns = _patterns(f"targets of config group {name}", group.get("targets"), problems)
    if group.get("targets") == []:
        problems.append(f"config group {name} has no targets")
    if len(patterns) == 1 and patterns[0].endswith("Attention"):
        return  # scales of the KV cache, not of weights
    yield from (Target(pattern, found, name) for pattern in patterns)


def _format(weights: Mapping[str, Any], layout_name: Any) -> Format:
    """The format that `weights` of a config group describes.

    Raises:
        ValueError: it does not describe any that vLLM loads.
    """
    bits, kind, size = (weights.get(k) for k in ("num_bits", "type", "group_size"))
    symmetric = weights.get("symmetric", True)
    strategy = weights.get("strategy") or ("tensor" if size is None else "channel" if size == -1 else "group")
    if type(bits) is not int or not 1 <= bits <= 16 or type(symmetric) is not bool:
        raise ValueError(f"num_bits is {bits!r} and symmetric {symmetric!r}")
    if weights.get("actorder") in ("group", "dynamic"):
        raise ValueError(f"vLLM no longer supports the activation order {weights['actorder']!r}")
    layout = LAYOUTS.get(str(layout_name))
    if layout_name is None:
        raise ValueError("neither it nor quantization_config has a format")
    if layout is None:
        return Format("scaled", bits, symmetric, 0)
    if weights.get("dynamic"):
        raise ValueError("weights cannot be dynamic")
    if strategy not in ("group", "tensor_group"):
        found = Format(layout, bits, symmetric, 0)
    elif type(size) is int and size > 0:
        found = Format(layout, bits, symmetric, size)
    else:
        raise ValueError(f"group_size is {size!r}")
    wanted = {
        "int": kind == "int" and 2 <= bits <= 8 and strategy in ("group", "channel"),
        "mxfp4": (kind, bits, symmetric, strategy, size) == ("float", 4, True, "group", 32),
        "nvfp4": (kind, bits, symmetric, strategy, size) == ("float", 4, True, "tensor_group", 16),
    }
    if not wanted[layout]:
        sides = "symmetric" if symmetric else "asymmetric"
        raise ValueError(f"{layout_name} cannot be {kind} of {bits} bits, {sides}, by {strategy} of {size}")
    return found


def _patterns(where: str, items: Any, problems: list[str]) -> list[str]:
    """Those of `items` that can be matched with names."""
    strings = _strings(items)
    if strings is None:
        problems.append(f"{where} is {str(items)[:80]!r}, not a list of names")
        return []
    good = []
    for item in strings:
        try:
            re.compile(item[3:] if item.startswith("re:") else "")
            good.append(item)
        except re.error as err:
            problems.append(f"{where}: {item!r} is no regular expression: {err}")
    return good


def _strings(items: Any) -> tuple[str, ...] | None:
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        return None
    return tuple(items)
