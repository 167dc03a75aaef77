"""A guard for other people's loaders: no weight may be missing when a torch module is used, however it was loaded.

    from gguf2st import guard

    guard.assert_complete(model)          # after loading: every offender at once
    with guard.forward_checks(model):     # or at the first forward pass: before a kernel sees the hole
        model(ids)

A weight is missing when it is None although the module uses it, lies on the meta device, or is one of torch's
uninitialised (lazy) parameters. What was loaded wrongly but has memory, such as random numbers for a missing tensor,
cannot be seen here: `gguf2st verify --run` can.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Any

from gguf2st.errors import VerifyError

if TYPE_CHECKING:
    import torch

OPTIONAL = frozenset({"bias", "bias_k", "bias_v"})
"""Parameters that torch's own modules register as None to say that they have none."""


@dataclass(frozen=True)
class Offender:
    """A weight that is not there.

    Attributes:
        name: dotted, from the module that was checked.
        module: class of the module that holds it.
        kind: "parameter" or "buffer".
        why: what is wrong with it.
    """

    name: str
    module: str
    kind: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name} of {self.module} {self.why}"


def offenders(module: "torch.nn.Module", *, allow: Iterable[str] = ()) -> tuple[Offender, ...]:
    """Every parameter and buffer of a module tree that is None, on meta or uninitialised. Tied weights appear once.

    A None that says "this module has none" does not count: an absent bias, a norm without affine weights, the unused
    form of an attention's input projection. A None buffer counts only where its class annotates it as a Tensor.

    Args:
        module: its root.
        allow: patterns (`fnmatch`) of dotted names that may be missing.
    """
    found: list[Offender] = []
    seen: set[int] = set()
    for path, owner in module.named_modules():
        for offender, value in _own(owner, path, tuple(allow)):
            if value is None or id(value) not in seen:
                found.append(offender)
            seen.add(id(value))
    return tuple(found)


def assert_complete(module: "torch.nn.Module", *, allow: Iterable[str] = ()) -> None:
    """Raise unless every parameter and buffer of a module tree has memory of its own; arguments as for `offenders`.

    Raises:
        VerifyError: with one line per offender in `problems`.
    """
    found = offenders(module, allow=tuple(allow))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise VerifyError(
            f"{type(module).__name__} is not complete: {found[0]}{more}",
            problems=[str(f) for f in found[1:]],
            hint="`gguf2st verify DIR --model` says which tensors the checkpoint lacks",
        )


class ForwardChecks:
    """Hooks on every submodule; `remove`, or leaving the `with` block, takes them off again."""

    def __init__(self, module: "torch.nn.Module", allow: tuple[str, ...]) -> None:
        # Appended, so that a lazy module's own hook has shaped its weights by then.
        self._handles = [
            owner.register_forward_pre_hook(_checker(path, allow)) for path, owner in module.named_modules()
        ]

    def remove(self) -> None:
        """Take the hooks off; a second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def __enter__(self) -> "ForwardChecks":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def forward_checks(module: "torch.nn.Module", *, allow: Iterable[str] = ()) -> ForwardChecks:
    """Check each submodule's own weights whenever its forward is called, before any kernel sees them.

    Use it as a context manager, or keep the result and call `remove()`. Lazy modules are checked after torch has
    shaped them from their first input. `allow` is as for `offenders`.

    Raises:
        RuntimeError: from the forward pass, naming the module and its missing parameter or buffer.
    """
    return ForwardChecks(module, tuple(allow))


def _checker(path: str, allow: tuple[str, ...]) -> Any:
    def check(owner: "torch.nn.Module", _inputs: Any) -> None:
        for offender, _ in _own(owner, path, allow):
            raise RuntimeError(
                f"{path or type(owner).__name__}: {offender}; it was never loaded. "
                "gguf2st.guard.assert_complete(model) lists every such weight"
            )

    return check


def _own(owner: "torch.nn.Module", path: str, allow: tuple[str, ...]) -> Iterator[tuple[Offender, Any]]:
    """(offender, its value) for the parameters and buffers that `owner` itself holds."""
    prefix = f"{path}." if path else ""
    rows: list[tuple[str, str, Any]] = [("parameter", name, value) for name, value in owner._parameters.items()]
    rows += [("buffer", name, value) for name, value in owner._buffers.items()]
    rows += [("parameter", name, None) for name in _lost_attributes(owner)]
    for kind, name, value in rows:
        if value is None and ((kind == "buffer" and not _annotated(owner, name)) or name in _absent_by_design(owner)):
            continue
        if (why := _what_is_wrong(value)) and not any(fnmatch(prefix + name, pattern) for pattern in allow):
            yield Offender(prefix + name, type(owner).__name__, kind, why), value


def _absent_by_design(owner: "torch.nn.Module") -> frozenset[str]:
    """Names that may be None because the module's settings say that it works without."""
    names = OPTIONAL
    if getattr(owner, "elementwise_affine", True) is False or getattr(owner, "affine", True) is False:
        names |= {"weight"}
    if (fused := getattr(owner, "_qkv_same_embed_dim", None)) is not None:  # torch's MultiheadAttention
        names |= {"q_proj_weight", "k_proj_weight", "v_proj_weight"} if fused else {"in_proj_weight"}
    return names


def _what_is_wrong(value: Any) -> str:
    import torch
    from torch.nn.parameter import is_lazy

    if value is None:
        return "is None"
    if is_lazy(value):
        return "is uninitialised: no one has given it a shape"
    if isinstance(value, torch.Tensor) and value.is_meta:
        return f"is on the meta device (shape {list(value.shape)}, no memory)"
    return ""


def _annotated(owner: "torch.nn.Module", name: str) -> bool:
    """Whether a class of the module promises a tensor: `running_mean: Tensor` rather than `Optional[Tensor]`."""
    import torch

    notes = (vars(cls).get("__annotations__", {}).get(name) for cls in type(owner).__mro__)
    return next((n for n in notes if n is not None), None) in (torch.Tensor, "Tensor", "torch.Tensor")


def _lost_attributes(owner: "torch.nn.Module") -> Iterator[str]:
    """Weights that a loader replaced by a plain None attribute: registered nowhere, but promised by the class."""
    registered = owner._parameters.keys() | owner._buffers.keys()
    for name, value in vars(owner).items():
        if value is None and name not in registered and _annotated(owner, name):
            yield name
