"""Step 2 of the plan: the dtype and the scheme of every entry.

vLLM loads some modules as one parameter (`qkv_proj`, the experts of a layer): their members get one scheme, or none.
It loads a mixed group without a word and answers garbage. So a group takes the best scheme that all of its members may
become, and is dequantized as a whole where there is none, or where one member cannot be packed at all.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from gguf2st.errors import UsageError
from gguf2st.fold import fold, listing
from gguf2st.ops import OPS
from gguf2st.plan import DENSE, DTYPES, GPT_OSS, Entry, Plan, parallel, template, vllm_modules
from gguf2st.plan.scales import scale_of
from gguf2st.quants.layout import TYPES
from gguf2st.schemes import MODES, SCHEMES, is_exact, targets

EXACT, BOUNDED, DEQUANTIZED, CAST = "the same numbers", "requantized", "dequantized", "cast"
RESCALED = "the same codes, under a scale of the whole weight that is rounded by less than a millionth"
"""How the reasons of entries begin."""
_NO_SCHEME = "no scheme holds the numbers"


def choose(plan: Plan, dtype: str | None = None, repack: str = "none") -> Plan:
    """The dtype and the scheme of every entry, with the reason.

    Args:
        plan: from `build.build`.
        dtype: of dense weights and of scales; None for bfloat16, or float16 when repacking, which scales want, unless
            the model or the format refuses it.
        repack: a member of `schemes.MODES`.

    Raises:
        UsageError: an unknown dtype or mode, or a dtype that no kernel for packed weights computes in.
    """
    _check(dtype, repack)
    entries = [e for e in plan.entries if all(plan.header.sources[s].qtype in TYPES for s in e.sources)]
    own_layout = repack != "none" and plan.config.get("model_type") == "gpt_oss" and _are_gpt_oss(plan, entries)
    notes: list[str] = []
    if dtype is None:
        dtype = "bfloat16" if repack == "none" or plan.float16 or own_layout else "float16"
        if repack != "none" and plan.float16:
            notes.append(f"bfloat16, not float16: {plan.float16}; its scales are rounded by up to 0.4% when served")
    elif dtype == "float16" and own_layout:
        raise UsageError("gpt-oss' own format is run in bfloat16 alone", hint="use --dtype bfloat16, or none")
    elif dtype == "float16" and plan.float16:
        notes.append(f"float16: {plan.float16}; convert with --dtype bfloat16")
    if own_layout:
        stacks = [e for e in entries if _is_expert_stack(e)]
        chosen = {e.name: dataclasses.replace(e, dtype=dtype, scheme=GPT_OSS, reason=EXACT) for e in stacks}
    elif repack != "none":
        chosen = _Choice(plan, dtype, repack).entries(entries)
    else:
        chosen = {}
    why = "config.json of this format describes the experts alone" if own_layout else ""
    done = tuple(chosen.get(e.name) or _dense(plan, e, dtype, why) for e in entries)
    if repack != "none" and all(e.scheme == DENSE for e in done):
        near = "; --repack near packs them, in 8 bits" if any(_NO_SCHEME in e.reason for e in done) else ""
        notes.append(f"--repack {repack} finds nothing to pack: {_most_frequent(e.reason for e in done)}{near}")
    if rescaled := [e.module for e in done if e.reason.startswith(RESCALED)]:
        notes.append(f"{RESCALED}, for nvfp4 divides by its inverse: {listing(rescaled)}")
    chosen_plan = dataclasses.replace(plan, entries=done, dtype=dtype, repack=repack)
    return dataclasses.replace(chosen_plan, notes=(*plan.notes, *notes, *parallel.notes(chosen_plan)))


def is_exact_entry(plan: Plan, entry: Entry) -> bool:
    """Whether a packed entry holds the numbers of its sources, to the last bit."""
    return all(is_exact(plan.header.sources[s].qtype, entry.scheme, entry.dtype, entry.scale) for s in entry.sources)


def decisions(plan: Plan) -> dict[str, str]:
    """Folded modules -> why they got another scheme than their type alone would have, or none."""
    names: dict[str, list[str]] = {}
    for e in plan.entries:
        usual = any(e.reason.endswith(why) for why in vllm_modules.EVERYWHERE.values())
        if ("; " in e.reason or ": " in e.reason) and not usual:
            what = f"{e.scheme}: {e.reason}" if e.scheme != DENSE else e.reason
            names.setdefault(what, []).append(e.module)
    return {name: what for what, modules in names.items() for name in fold(modules)}


def _check(dtype: str | None, repack: str) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"dtype {dtype!r} is unknown; there are {', '.join(DTYPES)}")
    if repack not in MODES:
        raise UsageError(f"repack {repack!r} is unknown; there are {', '.join(MODES)}")
    if repack != "none" and dtype == "float32":
        raise UsageError(
            "packed weights are multiplied in 16 bits: no kernel takes float32 scales",
            hint="use --dtype float16 or bfloat16, or --repack none",
        )


def _dense(plan: Plan, entry: Entry, dtype: str, why: str = "") -> Entry:
    quantized = any(TYPES[plan.header.sources[s].qtype].block > 1 for s in entry.sources)
    reason = (f"{DEQUANTIZED}: {why}" if why else DEQUANTIZED) if quantized else CAST
    return dataclasses.replace(entry, dtype=entry.pin or dtype, scheme=DENSE, reason=reason)


def _is_expert_stack(entry: Entry) -> bool:
    return len(entry.shape) == 3


def _are_gpt_oss(plan: Plan, entries: Sequence[Entry]) -> bool:
    """Whether all experts are MXFP4, and stacks of rows before their last op, which transposes.

    Transformers and vLLM know this layout in this model alone, for all of its experts or none.
    """
    stacks = [e for e in entries if _is_expert_stack(e)]
    return bool(stacks) and all(
        e.ops[-1:] == (("transpose",),)
        and all(OPS[op].packed for op, *_ in e.ops[:-1])
        and all(plan.header.sources[s].qtype == "MXFP4" and s not in plan.scales for s in e.sources)
        for e in stacks
    )


@dataclasses.dataclass(frozen=True)
class _Candidates:
    """What an entry may become by itself, the best first; `why` not, where that is nothing."""

    entry: Entry
    schemes: tuple[str, ...]
    why: str


class _Choice:
    """One plan and mode."""

    def __init__(self, plan: Plan, dtype: str, repack: str) -> None:
        self._plan, self._dtype, self._repack = plan, dtype, repack
        self._fused = {
            tuple(template(member).split(".")): module
            for module, members in plan.fused.items()
            for member in members
        }  # fmt: skip
        self._class = next(iter(plan.config.get("architectures", ())), "")
        self._lookup = cache(self._targets)

    def entries(self, entries: Iterable[Entry]) -> dict[str, Entry]:
        """Entry name -> the entry, decided, for all whose sources are quantized."""
        groups: dict[tuple[str, str], list[_Candidates]] = {}
        for e in entries:
            if any(TYPES[self._plan.header.sources[s].qtype].block > 1 for s in e.sources) or self._group_of(e)[0]:
                groups.setdefault(self._group_of(e), []).append(self._candidates(e))
        return {e.name: e for members in groups.values() for e in self._decide(members)}

    def _group_of(self, entry: Entry) -> tuple[str, str]:
        """What all entries have in common that must be packed alike."""
        alike = vllm_modules.ALIKE.get(self._class, frozenset[str]())
        if len(entry.sources) == 1 and (name := vllm_modules.layerless(entry.sources[0])) in alike:
            return "", name
        if module := self._module_of(entry):
            return module
        name = vllm_modules.layerless(entry.sources[0]) if entry.sources else ""
        if not self._fused and entry.name.endswith(".weight") and name in vllm_modules.TOGETHER:
            return entry.sources[0].partition(f".{name}")[0], vllm_modules.TOGETHER[name]
        return "", entry.name

    def _module_of(self, entry: Entry) -> tuple[str, str] | None:
        """The fused module that a weight is part of, as (what stands before its name, its name)."""
        if not entry.name.endswith(".weight"):
            return None
        parts = entry.module.split(".")
        pattern = template(entry.module).split(".")
        for n in range(len(parts), 0, -1):
            if module := self._fused.get(tuple(pattern[-n:])):
                return ".".join(parts[:-n]), module
        return None

    def _candidates(self, entry: Entry) -> _Candidates:
        """What the entry may become, whatever stands beside it."""
        sources = [self._plan.header.sources[s] for s in entry.sources]
        why = self._unfit(entry)
        if why:
            return _Candidates(entry, (), why)
        qtypes = tuple(dict.fromkeys(s.qtype for s in sources))
        schemes, why = self._lookup(qtypes, entry.shape)
        scale = scale_of(self._plan, entry.sources, entry.ops)
        if scale != 1.0:
            schemes = tuple(s for s in schemes if s == "nvfp4" and scale and scale > 0)
            why = "it has a scale of its own, for which only nvfp4 has a place"
        return _Candidates(dataclasses.replace(entry, scale=scale or 1.0), schemes, "" if schemes else why)

    def _unfit(self, entry: Entry) -> str:
        """Why no scheme can hold the entry, whatever its type; empty when one may."""
        if any(TYPES[self._plan.header.sources[s].qtype].block == 1 for s in entry.sources) or entry.whole:
            return "its type is not quantized"
        if len(entry.shape) > 2:
            return "the experts of a layer are one tensor here, not linear layers"
        if len(entry.shape) != 2 or not entry.name.endswith(".weight"):
            return "it is no weight of a linear layer"
        for name in entry.sources:
            if why := vllm_modules.unquantized(self._class, name):
                return why
        if not entry.packed:
            op = next(op for op, *_ in entry.ops if not OPS[op].packed)
            return f"{op} changes more than the order of whole rows"
        return ""

    def _targets(self, qtypes: tuple[str, ...], shape: tuple[int, ...]) -> tuple[tuple[str, ...], str]:
        """The schemes of a mode that hold all of the types in one weight of a shape; why none does."""
        lists = [targets(self._repack, qtype) for qtype in qtypes]
        common = _ranked(lists)
        if not common:
            return (), _no_scheme(self._repack, qtypes)
        fitting, why = [], ""
        for name in common:
            try:
                SCHEMES[name].parts(shape, self._dtype)
            except ValueError as err:
                why = str(err)
                continue
            if len(qtypes) > 1 and SCHEMES[name].row_step > 1:
                why = f"{name} packs rows of {' and '.join(qtypes)} together"
                continue
            fitting.append(name)
        return tuple(fitting), why

    def _decide(self, members: Sequence[_Candidates]) -> Iterable[Entry]:
        """The same scheme for all members, or none for any."""
        blocking = next((m for m in members if not m.schemes), None)
        common = () if blocking else _ranked([m.schemes for m in members])
        scales_differ = "nvfp4" in common and not _shared_scales(members)
        if scales_differ:
            common = tuple(s for s in common if s != "nvfp4")
        for m in members:
            if common:
                yield self._packed(m, common[0], members)
                continue
            if m is blocking or (not m.schemes and blocking):
                why = m.why
            elif blocking:
                why = f"together with {_short(blocking.entry)}, which is not packed: {blocking.why}"
            elif scales_differ:
                why = f"{_listed(members, self._plan)} are one parameter in vLLM, and their scales differ"
            else:
                why = f"{_listed(members, self._plan)} are one parameter in vLLM: {_no_scheme(self._repack)}"
            yield _dense(self._plan, m.entry, self._dtype, why)

    def _packed(self, member: _Candidates, scheme: str, members: Sequence[_Candidates]) -> Entry:
        sources = [self._plan.header.sources[s] for s in member.entry.sources]
        # Numbers that are in the file already stay as they are; the loader casts scales to the model's dtype.
        exact = all(is_exact(s.qtype, scheme, "float16") for s in sources)
        kept = all(is_exact(s.qtype, scheme, "float16", member.entry.scale) for s in sources)
        reason = (EXACT if kept else RESCALED) if exact else BOUNDED
        if scheme != member.schemes[0]:
            reason += f"; not {member.schemes[0]}: {_listed(members, self._plan)} are one parameter in vLLM"
        dtype = "float16" if exact else self._dtype
        return dataclasses.replace(member.entry, dtype=dtype, scheme=scheme, reason=reason)


def _ranked(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """What is in all lists, the best for all of them first."""
    common = [name for name in lists[0] if all(name in names for names in lists[1:])]
    return tuple(sorted(common, key=lambda name: sum(names.index(name) for names in lists)))


def _no_scheme(repack: str, qtypes: Sequence[str] = ()) -> str:
    of = f" of {' and '.join(qtypes)}" if qtypes else " of all"
    return f"{_NO_SCHEME}{of}" if repack == "exact" else f"no scheme of --repack {repack} holds{of[3:]}"


def _shared_scales(members: Sequence[_Candidates]) -> bool:
    """Whether weights that share a parameter share their scale: vLLM keeps one for gate and up, or q, k and v.

    Experts have one each, and one more for the matrix that follows.
    """
    found: dict[tuple[str, bool], float] = {}
    for m in members:
        numbers = ".".join(p for p in m.entry.name.split(".") if p.isdigit())
        second = any(".ffn_down" in s for s in m.entry.sources)
        if found.setdefault((numbers, second), m.entry.scale) != m.entry.scale:
            return False
    return True


def _listed(members: Sequence[_Candidates], plan: Plan) -> str:
    """`q_proj (Q4_K), k_proj (Q4_K), v_proj (Q6_K)`; experts once."""
    rows: dict[str, None] = {}
    for m in members:
        qtypes = dict.fromkeys(plan.header.sources[s].qtype for s in m.entry.sources)
        rows[f"{_short(m.entry)} ({', '.join(qtypes)})"] = None
    return ", ".join(rows)


def _short(entry: Entry) -> str:
    return entry.module.rpartition(".")[2]


def _most_frequent(reasons: Iterable[str]) -> str:
    reasons = list(reasons)
    counts = Counter([why for why in reasons if why != CAST] or reasons)
    return counts.most_common(1)[0][0] if counts else "there are no tensors"
