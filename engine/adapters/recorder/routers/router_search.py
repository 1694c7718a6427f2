"""Search for the routers among the modules of any model.

A router is recognised by the experts beside it: it has as many outputs as there are experts. Names only decide between
candidates, or stand in where the experts cannot be counted (``docs/recorder.md`` explains the rules).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from tokenpaths.engine.base.errors import UserError

_ROUTER_WORD = re.compile(r"rout|gat(e|ing)|switch|(^|[._])wg($|[._])", re.IGNORECASE)
_EXPERT_WORD = re.compile(r"expert", re.IGNORECASE)
_ATTENTION_WORD = re.compile(r"attn|attention", re.IGNORECASE)
_MIXTURE_CLASS = re.compile(r"moe|mixture|expert|switch|sparse", re.IGNORECASE)
_PLAIN_NAMES = frozenset({"gate", "router", "gating", "wg", "switch"})
_TOP_K_NAMES = (
    "top_k",
    "topk",
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_router_topk",
    "num_selected_experts",
    "n_activated_experts",
    "num_experts_used",
    "top_k_experts",
)
_NEAR_TOP_K_NAMES = (*_TOP_K_NAMES, "k", "K")
_SCALE_NAMES = ("routed_scaling_factor", "router_scaling_factor", "route_scale", "scaling_factor")
_COUNT_NAMES = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_CONFIG_NAMES = ("config", "cfg", "args")
_MOST_EXPERTS = 65_536
_MOST_BY_NAME = 1024
_SCOPES = 2
"""levels searched: the module that holds the router's experts, and its parent"""
_DEPTH = 3


@dataclass
class Router:
    """One router: name, reason for its selection, and what is read from it."""

    name: str
    why: str
    module: nn.Module = field(repr=False)
    num_experts: int | None = None
    top_k: int | None = None
    reads: str = "not called yet"
    """the part of its output that is stored; known after the first forward pass"""
    steps: tuple[int, ...] = ()
    """the steps of the run that its calls correspond to"""
    experts: str | None = None
    params_per_expert: int = 0
    flops_per_token: int = 0
    """of one expert, 2 per multiply-add of its matrices; 0 if experts differ or cannot be counted"""
    scale: float | None = None
    around: Router | None = field(default=None, repr=False)
    """a candidate that encloses this one; preferred if its output holds ids or scores"""
    must_give_ids: bool = field(default=False, repr=False)
    """found by its name only: rejected unless its output, or that of the enclosing one, holds ids"""


@dataclass(frozen=True)
class _Experts:
    """A set of equal experts and its position."""

    name: str
    count: int
    named: bool
    words: str
    params: int
    flops: int


def plain_name(name: str) -> str:
    """A module's name without the components added by ``torch.compile`` and wrappers."""
    return ".".join(part for part in name.split(".") if part not in ("_orig_mod", "_checkpoint_wrapped_module"))


def find_routers(model: nn.Module) -> list[Router]:
    """The candidates of ``model``, in module order; empty if there are none."""
    modules = {plain_name(name): module for name, module in model.named_modules()}
    containers = list(_expert_sets(modules))
    routers: dict[str, Router] = {}
    for experts in containers:
        for router in _beside(modules, experts, [c.name for c in containers]):
            routers.setdefault(router.name, router)
    covered = set(routers) | {r.around.name for r in routers.values() if r.around}
    closed = [c.name for c in containers if c.named] + [r.experts for r in routers.values() if r.experts]
    by_shape = set(routers)
    for router in _by_name(modules, covered, closed):
        # Beside routers that are known by their experts, a gate of an attention is likelier than another router.
        router.must_give_ids = router.must_give_ids or (bool(by_shape) and not _has_own_top_k(router, modules))
        routers.setdefault(router.name, router)
    for router in routers.values():
        # A configuration of the whole model speaks of other modules, too.
        gate = None if router.name in by_shape or router.must_give_ids else (router.around or router).name
        for candidate in (router, router.around):
            if candidate is not None:
                fill_from_attributes(candidate, modules, gate)
    place = {name: i for i, name in enumerate(modules)}
    return sorted(routers.values(), key=lambda router: place[router.name])


def named_routers(model: nn.Module, entries: Sequence[str | nn.Module]) -> list[Router]:
    """The routers named by the caller, by pattern or by module; further properties are inferred.

    Raises:
        UserError: a pattern without a match, or a module that is not part of this model.
    """
    modules = {plain_name(name): module for name, module in model.named_modules()}
    by_name = {router.name: router for router in find_routers(model)}
    for router in list(by_name.values()):
        if router.around:
            by_name.setdefault(router.around.name, router.around)
    chosen: dict[str, Router] = {}
    for entry in entries:
        for name in _named(modules, entry):
            similar = by_name.get(name)
            why = f"named by routers={entry!r}" if isinstance(entry, str) else "the module was given by routers="
            router = Router(name, why, modules[name], _outputs_of(modules[name]))
            if similar is not None:
                router.num_experts, router.experts = similar.num_experts, similar.experts
                router.params_per_expert, router.flops_per_token = similar.params_per_expert, similar.flops_per_token
            fill_from_attributes(router, modules)
            chosen[name] = router
    return list(chosen.values())


def _named(modules: dict[str, nn.Module], entry: str | nn.Module) -> list[str]:
    if isinstance(entry, nn.Module):
        names = [name for name, module in modules.items() if module is entry]
        if not names:
            raise UserError(
                f"routers holds a {type(entry).__name__} that is no module of this model: give one of "
                "its own modules, or a name",
                field="routers",
            )
        return names
    names = [name for name in modules if name and fnmatchcase(name, entry)]
    if not names:
        last = entry.rpartition(".")[2].strip("*") or entry
        near = [name for name in modules if last and last in name][:5] or [name for name in modules if name][:5]
        raise UserError(
            f"no module is called {entry!r}; there are {', '.join(near)} … (* stands for anything, dots included)",
            field="routers",
        )
    return names


def nothing_found(model: nn.Module) -> UserError:
    """The error for a model without a router: what was searched, and how to name one."""
    return UserError(
        f"no router was found in {type(model).__name__}: looked for a Linear or a gate with one output for each expert "
        "beside a list or a stack of at least 2 equal experts, for modules called gate or router that return expert "
        "ids, and for a Linear called gate or router with a top_k beside it; name them with "
        'routers=["layers.*.gate"]',
        field="routers",
    )


def fill_from_attributes(router: Router, modules: dict[str, nn.Module], gate: str | None = None) -> None:
    """Read top-k and the scale of the weights from the router, the modules around it and their configurations.

    ``gate``: name of the gate that it is or stands in, where only what stands on it or on the module around it counts,
    and configurations that speak of as many experts.
    """
    names_around = [router.name, *_ancestors(router.name)]
    near = len(names_around) if gate is None else names_around.index(gate) + 2
    around = [modules[name] for name in names_around]
    inner: Any = router.module
    while router.scale is None and isinstance(inner, nn.Module):
        router.scale = _number(inner, _SCALE_NAMES, 1e-6, 1e6)
        inner = getattr(inner, "base_layer", None)  # of an adapter (PEFT) around the gate
    if router.top_k is not None:
        return
    most = router.num_experts or _MOST_EXPERTS
    for distance, module in enumerate(around):
        names = _NEAR_TOP_K_NAMES if distance < 2 else _TOP_K_NAMES
        configs = [c for name in _CONFIG_NAMES if (c := getattr(module, name, None)) is not None]
        if gate is not None and distance >= near - 1:
            # It speaks of more than the gate, unless it counts as many experts.
            configs = [c for c in configs if any(_number(c, [n], most, most) for n in _COUNT_NAMES)]
        places = [*([module] if distance < near else []), *configs]
        for place in places:
            value = _number(place, names, 1, most)
            if value is not None and value == int(value):
                router.top_k = int(value)
                return


def _has_own_top_k(router: Router, modules: dict[str, nn.Module]) -> bool:
    """Whether a Linear that is found by its name has a top-k of no other meaning beside it, outside of an attention."""
    parent = modules[router.name.rpartition(".")[0]]
    if router.around is not None or _ATTENTION_WORD.search(f"{router.name} {type(parent).__name__}"):
        return False
    most = router.num_experts or _MOST_EXPERTS
    return any(_number(place, _TOP_K_NAMES, 1, most) is not None for place in (router.module, parent))


def _number(place: Any, names: Sequence[str], low: float | int, high: float | int) -> float | None:
    """The first of the attributes ``names`` that holds a number in [low, high]."""
    for name in names:
        value = place.get(name) if isinstance(place, dict) else getattr(place, name, None)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
    return None


def _ancestors(name: str) -> Iterator[str]:
    """Names of the enclosing modules, nearest first; the model itself is ''."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _expert_sets(modules: dict[str, nn.Module]) -> Iterator[_Experts]:
    for name, module in modules.items():
        last = name.rpartition(".")[2]
        named = bool(_EXPERT_WORD.search(last) or _EXPERT_WORD.search(type(module).__name__))
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)):
            experts = list(module.values() if isinstance(module, nn.ModuleDict) else module)
            if not 2 <= len(experts) <= _MOST_EXPERTS or _ROUTER_WORD.search(last):
                continue
            shapes = [[tuple(p.shape) for p in e.parameters()] for e in experts]
            if not named and any(shape != shapes[0] or not shape for shape in shapes):
                continue
            equal = all(shape == shapes[0] for shape in shapes)
            params, flops = _cost(shapes[0]) if equal else (0, 0)
            yield _Experts(name, len(experts), named, f"a list of {len(experts)} experts", params, flops)
            continue
        if isinstance(module, nn.modules.conv._ConvNd):
            continue
        stacked = [tuple(p.shape) for p in module.parameters(recurse=False) if p.dim() == 3]
        sizes = {shape[0] for shape in stacked}
        if stacked and len(sizes) == 1 and 2 <= (count := sizes.pop()) <= _MOST_EXPERTS:
            params, flops = _cost([shape[1:] for shape in stacked])
            yield _Experts(name, count, named, f"weights of {count} experts in one tensor", params, flops)


def _cost(shapes: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Parameters of one expert, and FLOPs of its matrices for one token."""
    sizes = [math.prod(shape) for shape in shapes]
    return sum(sizes), 2 * sum(size for size, shape in zip(sizes, shapes, strict=True) if len(shape) == 2)


def _outputs_of(module: nn.Module) -> int | None:
    """Number of outputs of a Linear, or of a gate with a single weight matrix; None: unknown."""
    size = getattr(module, "out_features", None)
    if isinstance(size, int):
        return size
    matrices = [p for p in module.parameters(recurse=False) if p.dim() == 2]
    # A gate keeps (experts, width); there are fewer experts than the width of the model.
    return min(int(length) for length in matrices[0].shape) if len(matrices) == 1 else None


def _beside(modules: dict[str, nn.Module], experts: _Experts, containers: Sequence[str]) -> Iterator[Router]:
    """The routers of one set of experts: the nearest modules with as many outputs as experts."""
    own_stack = not isinstance(modules[experts.name], (nn.ModuleList, nn.ModuleDict))
    scopes = ([experts.name] if own_stack else []) + list(_ancestors(experts.name))
    for scope in scopes[: _SCOPES + own_stack]:
        inside = [
            name
            for name in modules
            if _is_below(name, scope)
            and not any(name == other or _is_below(name, other) for other in containers if _is_below(other, scope))
        ]
        fitting = [
            name
            for name in inside
            if name.removeprefix(scope).count(".") <= _DEPTH and _fits(modules, name, scope, experts)
        ]
        # A Linear around a Linear adds to it (LoRA), so the outer one is the router.
        outer = [name for name in fitting if isinstance(getattr(modules[name], "out_features", None), int)]
        fitting = [name for name in fitting if not any(_is_below(name, other) for other in outer)]
        # An inner candidate is kept by itself; what stands around it is tried first.
        leaves = [name for name in fitting if not any(_is_below(other, name) for other in fitting)]
        hinted = [name for name in leaves if _ROUTER_WORD.search(name.removeprefix(scope))]
        chosen = hinted or leaves
        parents = {name.rpartition(".")[0] for name in chosen}
        several = len(chosen) > 1 and (len(parents) > 1 or not isinstance(modules[parents.pop()], nn.ModuleList))
        if several and hinted:
            exact = [name for name in chosen if _PLAIN_NAMES & set(name.removeprefix(scope).split("."))]
            chosen = (exact or chosen)[:1]
        elif several:
            continue
        for name in chosen:
            yield _router(modules, name, scope, experts)
        if chosen:
            return


def _router(modules: dict[str, nn.Module], name: str, scope: str, experts: _Experts) -> Router:
    def candidate(place: str, why: str) -> Router:
        return Router(
            place,
            why,
            modules[place],
            experts.count,
            experts=experts.name,
            params_per_expert=experts.params,
            flops_per_token=experts.flops,
        )

    kind = "Linear" if hasattr(modules[name], "out_features") else type(modules[name]).__name__
    why = f"{kind} with {experts.count} outputs beside {experts.words} ({experts.name or 'the model'})"
    router = candidate(name, why)
    for around in _ancestors(name):
        if not _is_below(around, scope) or isinstance(modules[around], (nn.ModuleList, nn.Sequential)):
            break
        kind = type(modules[around]).__name__
        if _ROUTER_WORD.search(around.rpartition(".")[2]) or _ROUTER_WORD.search(kind):
            router.around = candidate(around, f"{kind} around {name} beside {experts.words} ({experts.name})")
    return router


def _fits(modules: dict[str, nn.Module], name: str, scope: str, experts: _Experts) -> bool:
    """Whether a module has one output per expert, and a name suggests that these are experts."""
    module = modules[name]
    called = bool(_ROUTER_WORD.search(name.removeprefix(scope)) or _ROUTER_WORD.search(type(module).__name__))
    if isinstance(getattr(module, "out_features", None), int):
        hint = bool(experts.named) or called or bool(_MIXTURE_CLASS.search(type(modules[scope]).__name__))
        return bool(module.out_features == experts.count) and hint
    matrices = [p for p in module.parameters(recurse=False) if p.dim() == 2]
    return called and any(experts.count in p.shape for p in matrices)


def _is_below(name: str, scope: str) -> bool:
    return bool(name) if not scope else name.startswith(scope + ".")


def _narrows(module: nn.Module) -> bool:
    """Whether a Linear has fewer outputs than inputs, as a router has."""
    size = getattr(module, "out_features", None)
    return isinstance(size, int) and 2 <= size <= min(_MOST_BY_NAME, getattr(module, "in_features", 0) - 1)


def _by_name(modules: dict[str, nn.Module], covered: set[str], closed: Sequence[str]) -> Iterator[Router]:
    """Gates whose experts cannot be counted: they need ids in their output, or a top-k attribute nearby."""
    for name, module in modules.items():
        last = name.rpartition(".")[2]
        if not name or name in covered or any(_is_below(name, other) for other in (*closed, *covered) if other):
            continue
        if any(_is_below(other, name) for other in covered):
            continue
        size = getattr(module, "out_features", None)
        if isinstance(size, int):
            if last not in _PLAIN_NAMES or not _narrows(module):
                continue
            router = Router(name, f"Linear called {last} with {size} outputs", module, size)
            near = [module, modules[name.rpartition(".")[0]]]
            top_k = next((k for m in near if (k := _number(m, _NEAR_TOP_K_NAMES, 1, size)) is not None), None)
            if top_k is None:
                continue
            router.why += f" and a top-k of {int(top_k)} beside it"
            router.top_k = int(top_k)
            yield router
        elif not isinstance(module, (nn.ModuleList, nn.ModuleDict, nn.Sequential)) and (
            last in _PLAIN_NAMES or re.search(r"(Router|Gate|Gating)$", type(module).__name__)
        ):
            why = f"{type(module).__name__} called {last} whose output holds expert ids"
            gate = Router(name, why, module, must_give_ids=True)
            lines = [(inner, m) for inner, m in modules.items() if _is_below(inner, name) and _narrows(m)]
            if len(lines) == 1:
                inner, line = lines[0]
                gate.num_experts = int(getattr(line, "out_features", 0))
                why = f"the only Linear inside {name} ({type(module).__name__}), with {line.out_features} outputs"
                yield Router(inner, why, line, gate.num_experts, around=gate)
            else:
                yield gate
