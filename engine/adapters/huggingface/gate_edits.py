"""Edited decisions of Hugging Face gates: bans, biases and k enter the gate's own choice, the rest replaces it.

A gate's code is left as it is. While it runs, whatever it sends through softmax, sigmoid, top-k, a sort or a maximum
over all experts is changed on the way:

- banned experts hold −∞ (for all tokens, or for single ones), so their probability is 0 and they are never picked;
- a bias is added where scores are compared, and taken out of what the comparison hands on: it moves the choice, never
  the weight, as in "Distributed Neural Architectures" and in DeepSeek-V3's selection bias;
- k replaces the number that the gate asks top-k for.

What comes after (renormalising, group limits, scales) is the model's own code. Forced modules, swaps, frozen and
shuffled decisions then replace the ids that the experts get, by ``engine.models.apply_edits`` as in our families.

Shapes: B windows, T positions, N = B·T, n tokens of texts among them, S gates (the steps), M experts, K slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Integer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from tokenpaths.engine.adapters.huggingface.gates import Gate, Said, called_with, said_by, with_call, with_output
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.routing import Decision
from tokenpaths.engine.families.edit_plan import RoutePlan, StepPlan
from tokenpaths.engine.models.apply_edits import allowed_modules, edited

_SCORES = {
    torch.softmax,
    F.softmax,
    Tensor.softmax,
    torch.sigmoid,
    torch.sigmoid_,
    Tensor.sigmoid,
    Tensor.sigmoid_,
    F.sigmoid,
}
_COMPARISONS = {torch.topk, Tensor.topk, torch.sort, Tensor.sort, torch.argsort, Tensor.argsort}
_TOP_K = {torch.topk, Tensor.topk}
_ALONG = {torch.max, Tensor.max, torch.argmax, Tensor.argmax}
"""comparisons, if called with a dimension"""
_NUMBERS_OF_CHOICES = (
    "top_k",
    "topk",
    "num_experts_per_tok",
    "num_experts_per_token",
    "moe_top_k",
    "moe_topk",
    "moe_k",
)
"""attribute names of K in gates and blocks"""
_FIXED_K = {
    "PhimoeTopKRouter": "SparseMixer picks two experts, one after the other",
    "ZayaRouter": "it picks the one best expert",
    "DeepseekV4HashRouter": "it looks a fixed number of experts up by the id of the token",
    "JetMoeTopKGating": "the attention of its blocks has one group of heads for each chosen expert",
}
_MORE_THAN_ONE = {"LongcatFlashTopkRouter": "its experts cannot be called with one slot"}
_NO_OTHER_IDS = {"ZayaRouter": "skipping the layer is a choice of weight 0, so no other expert can take its place"}
_BY_TABLE = {"DeepseekV4HashRouter": "experts are looked up by the id of the token, not scored"}


def check_gates(gates: Sequence[Gate], plan: RoutePlan, top_k: int) -> None:
    """Refuse edits that a gate class does not support.

    Args:
        gates: of the model.
        plan: edits per gate.
        top_k: of the unedited model.

    Raises:
        UserError: names the gate and the reason; ``field`` is ``edits``.
    """
    for gate, step in zip(gates, plan.steps, strict=True):
        kind = type(gate.module).__name__
        if plan.top_k != top_k:
            _check_k(gate, kind, plan.top_k)
        if step is None:
            continue
        if step.bias and kind in _BY_TABLE:
            raise UserError(f"{gate.name} ({kind}) cannot be biased: {_BY_TABLE[kind]}", field="edits")
        if _redecides(step) and kind in _NO_OTHER_IDS:
            raise UserError(
                f"{gate.name} ({kind}) cannot be told where tokens go: {_NO_OTHER_IDS[kind]}", field="edits"
            )


def _check_k(gate: Gate, kind: str, top_k: int) -> None:
    if kind in _FIXED_K:
        raise UserError(f"{gate.name} ({kind}) cannot pick {top_k} experts: {_FIXED_K[kind]}", field="edits")
    if top_k == 1 and kind in _MORE_THAN_ONE:
        raise UserError(f"{gate.name} ({kind}) cannot pick 1 expert: {_MORE_THAN_ONE[kind]}", field="edits")
    if gate.semantics.groups is not None:
        groups, usable = gate.semantics.groups
        most = usable * gate.num_experts // groups
        if top_k > most:
            raise UserError(
                f"{gate.name} ({kind}) cannot pick {top_k} experts: a token may use {usable} of {groups} groups, "
                f"which hold {most}",
                field="edits",
            )


def _redecides(step: StepPlan) -> bool:
    return bool(step.forced) or step.given is not None or step.frozen or step.shuffled is not None


@dataclass(frozen=True)
class Frame:
    """Which positions of a pass hold text tokens."""

    valid: Bool[Tensor, "B T"]
    """positions that are tokens of a text"""
    before: int
    """number of positions before every text, e.g. special tokens"""

    @property
    def shape(self) -> tuple[int, int]:
        """Number of windows, and positions without those before the text."""
        return self.valid.shape[0], self.valid.shape[1] - self.before

    @property
    def text_valid(self) -> Bool[Tensor, "B T"]:
        return self.valid[:, self.before :]

    def rows(self, device: torch.device) -> Integer[Tensor, " n"]:
        """Flat indices, among all N positions, of those after the prefix."""
        return torch.arange(self.valid.numel(), device=device).view(self.valid.shape)[:, self.before :].flatten()


def text_decision(gate: Gate, said: Said, rows: Tensor) -> Decision:
    """A gate's decision at ``rows``, slots sorted by weight; learned scales of single experts are divided out."""
    learned = getattr(gate.module, "per_expert_scale", None)
    weights = said.weights[rows]
    ids = said.ids[rows]
    if learned is not None:
        weights = weights / learned[ids].to(weights.dtype)
    weights, order = weights.sort(dim=1, descending=True, stable=True)
    nothing = weights.new_zeros((len(rows), 1))
    return Decision(nothing, nothing, ids.gather(1, order).long(), weights)


class GateEdits:
    """Context manager that applies ``plan`` to one forward pass and restores the model on exit.

    Enter it before the recording hooks, so that they see the edited decisions.
    """

    def __init__(
        self, gates: Sequence[Gate], plan: RoutePlan, top_k: int, frame: Frame, unedited: list[Decision] | None = None
    ) -> None:
        self.gates, self.plan, self.top_k, self.frame, self.unedited = gates, plan, top_k, frame, unedited
        self._stack = ExitStack()
        self._steps: dict[int, Iterator[int]] = {}

    def __enter__(self) -> GateEdits:
        owners: dict[int, tuple[nn.Module, list[int]]] = {}
        for step, gate in enumerate(self.gates):
            owner = gate.block if gate.at_experts else gate.module
            owners.setdefault(id(owner), (owner, []))[1].append(step)
        try:
            for owner, steps in owners.values():
                if any(self.plan.steps[step] is not None for step in steps):
                    self._edit(owner, steps)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _edit(self, owner: nn.Module, steps: list[int]) -> None:
        """Edit one gate call; a gate that is called several times in a pass is one step per call."""
        gate = self.gates[steps[0]]
        calls, decided = iter(steps), iter(steps)
        if self.plan.top_k != self.top_k:
            for holder in (gate.module, gate.block):
                self._stack.enter_context(_with_k(holder, self.top_k, self.plan.top_k))

        def forward(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            step = next(calls, steps[-1])
            output = self._choose(step, lambda: own(*args, **kwargs))
            if gate.at_experts:
                return output
            said = said_by(gate.module, output)
            assert said is not None, "find_gates saw ids and weights"
            new = self._redecide(step, said)
            return output if new is said else with_output(gate.module, output, new)

        self._stack.enter_context(_replaced_forward(owner, forward))
        if gate.at_experts:

            def before_experts(module: nn.Module, args: Any, kwargs: Any) -> Any:
                said = called_with(args, kwargs)
                assert said is not None, "find_gates saw ids and weights"
                new = self._redecide(next(decided, steps[-1]), said)
                return None if new is said else with_call(args, kwargs, new)

            handle = gate.hooked.register_forward_pre_hook(before_experts, with_kwargs=True)
            self._stack.callback(handle.remove)

    def _choose(self, step: int, run: Callable[[], Any]) -> Any:
        """The gate's own selection under bans, bias and k."""
        plan, gate = self.plan.steps[step], self.gates[step]
        if plan is None or not (plan.banned or plan.banned_for or plan.bias or self.plan.top_k != self.top_k):
            return run()
        mode = _EditedScores(gate, plan, self.hidden(step), (self.top_k, self.plan.top_k))
        with mode:
            output = run()
        if plan.bias and not mode.compared:
            raise UserError(
                f"{gate.name} ({type(gate.module).__name__}) cannot be biased: its choice is not made by scores over "
                "all experts",
                field="edits",
            )
        return output

    def hidden(self, step: int) -> Bool[Tensor, " M"] | Bool[Tensor, "N M"] | None:
        """Mask of the experts that may not be chosen, common to all positions or per position."""
        plan, gate = self.plan.steps[step], self.gates[step]
        if plan is None or not (plan.banned or plan.banned_for):
            return None
        hidden_M = torch.zeros(gate.num_choices, dtype=torch.bool)
        hidden_M[sorted(plan.banned)] = True
        if not plan.banned_for:
            return hidden_M
        choices = tuple(range(gate.num_choices))
        allowed = allowed_modules(
            choices, gate.num_choices, plan, torch.device("cpu"), self.frame.shape, self.frame.text_valid, self.unedited
        )
        assert allowed is not None
        hidden_NM = hidden_M.repeat(self.frame.valid.numel(), 1)
        hidden_NM[self.frame.rows(hidden_NM.device)] = ~allowed
        return hidden_NM

    def _redecide(self, step: int, said: Said) -> Said:
        """Ids and weights with forced, given, frozen or shuffled decisions; ``said`` unchanged if there are none."""
        plan, gate = self.plan.steps[step], self.gates[step]
        if said.ids.shape[1] != self.plan.top_k:
            raise UserError(
                f"{gate.name} ({type(gate.module).__name__}) picked {said.ids.shape[1]} experts for each token, not "
                f"{self.plan.top_k}: its code does not take their number from top-k",
                field="edits",
            )
        if plan is None or not _redecides(plan):
            return said
        rows = self.frame.rows(said.ids.device)
        own = text_decision(gate, said, rows)
        new = edited(own, plan, step, self.frame.shape, self.frame.text_valid, self.unedited)
        weights = new.weights.to(said.weights)
        learned = getattr(gate.module, "per_expert_scale", None)
        if learned is not None:
            weights = weights * learned[new.module_ids].to(weights.dtype)
        # Untouched tokens keep the order of their slots too, so that their sums stay the same bit for bit.
        touched = (new.module_ids != own.module_ids).any(dim=1) | (new.weights != own.weights).any(dim=1)
        ids_NK, weights_NK = said.ids.clone(), said.weights.clone()
        ids_NK[rows[touched]] = new.module_ids[touched].to(ids_NK.dtype)
        weights_NK[rows[touched]] = weights[touched]
        return replace(said, ids=ids_NK, weights=weights_NK)

    def check(self, module_ids: Integer[Tensor, "n S K"]) -> None:
        """Check that no banned expert was chosen, as a gate with a look-up table would.

        Args:
            module_ids: choices of the text tokens.

        Raises:
            UserError: names the gate and the expert.
        """
        keep = self.frame.valid.flatten()
        for step, gate in enumerate(self.gates):
            hidden = self.hidden(step)
            if hidden is None:
                continue
            ids = module_ids[:, step].long()
            taken = hidden[ids] if hidden.dim() == 1 else hidden[keep].gather(1, ids)
            if taken.any():
                raise UserError(
                    f"{gate.name} ({type(gate.module).__name__}) chose expert {int(ids[taken][0])} though it is "
                    "banned: its choice is not made by scores over all experts, so it cannot be edited",
                    field="edits",
                )


@contextmanager
def _replaced_forward(owner: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    there, own = "forward" in vars(owner), owner.forward
    owner.forward = lambda *args, **kwargs: forward(own, *args, **kwargs)  # type: ignore[method-assign]
    try:
        yield
    finally:
        if there:
            owner.forward = own  # type: ignore[method-assign]
        else:
            del owner.forward


@contextmanager
def _with_k(holder: nn.Module, own: int, top_k: int) -> Iterator[None]:
    """Set the number of choices of a gate or block to ``top_k``."""
    names = [name for name in _NUMBERS_OF_CHOICES if getattr(holder, name, None) == own]
    for name in names:
        setattr(holder, name, top_k)
    try:
        yield
    finally:
        for name in names:
            setattr(holder, name, own)


class _EditedScores(TorchFunctionMode):
    """Function mode that edits scores over all experts wherever they are normalised or compared."""

    def __init__(self, gate: Gate, plan: StepPlan, hidden: Tensor | None, top_k: tuple[int, int]) -> None:
        super().__init__()
        self._num_choices, self._groups = gate.num_choices, gate.semantics.groups
        self._masked, self._own_k, self._top_k = hidden, *top_k
        self._bias: Tensor | None = None
        if plan.bias:
            self._bias = torch.zeros(gate.num_choices)
            for module, value in plan.bias:
                self._bias[module] = value
        self.compared = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        compares = func in _COMPARISONS or func in _ALONG and (len(args) > 1 or bool(kwargs))
        if not args or not (compares or func in _SCORES) or not self._is_scores(args[0]):
            return func(*args, **kwargs)
        scores = self._with_masked(args[0])
        if not compares:
            return func(scores, *args[1:], **kwargs)
        self.compared = True
        rest = args[1:]
        if func in _TOP_K and scores.shape[-1] == self._num_choices:
            rest, kwargs = self._with_top_k(rest, kwargs)
        if self._bias is None:
            return func(scores, *rest, **kwargs)
        result = func(scores + self._shaped(self._bias, scores).to(scores), *rest, **kwargs)
        if not isinstance(result, tuple) or scores.shape[-1] != self._num_choices:
            return result
        ids = result[1] if result[1].dim() == scores.dim() else result[1].unsqueeze(-1)
        return type(result)((scores.gather(-1, ids).view_as(result[0]), result[1]))

    def _is_scores(self, scores: Any) -> bool:
        if not isinstance(scores, Tensor) or not scores.is_floating_point() or scores.dim() == 0:
            return False
        if scores.shape[-1] == self._num_choices:
            return self._masked is None or self._masked.dim() == 1 or scores.numel() == self._masked.numel()
        groups = self._groups
        return (
            groups is not None and scores.dim() == 3 and scores.shape[1:] == (groups[0], self._num_choices // groups[0])
        )

    def _shaped(self, values: Tensor, scores: Tensor) -> Tensor:
        """``values`` (M,) or (N, M) reshaped to the scores over all experts, or over those of each group."""
        last = scores.shape[-1:] if scores.shape[-1] == self._num_choices else scores.shape[-2:]
        shape = last if values.dim() == 1 else scores.shape
        return values.to(scores.device).view(shape)

    def _with_masked(self, scores: Tensor) -> Tensor:
        if self._masked is None:
            return scores
        return scores.masked_fill(self._shaped(self._masked, scores), float("-inf"))

    def _with_top_k(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._top_k != self._own_k:
            if args and args[0] == self._own_k:
                return (self._top_k, *args[1:]), kwargs
            if kwargs.get("k") == self._own_k:
                return args, kwargs | {"k": self._top_k}
        return args, kwargs
