"""Which modules are taken for routers, in the layouts that people use; nothing is run."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.support.recorder_models import Expert
from tokenpaths.engine.adapters.recorder.routers.router_search import find_routers


def line(outputs: int, inputs: int = 16) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def parts(kind: str = "Block", **members) -> nn.Module:
    """A module of class ``kind`` with these children, parameters and attributes."""
    module = type(kind, (nn.Module,), {})()
    for name, member in members.items():
        setattr(module, name, member)
    return module


def experts(count: int = 4) -> nn.ModuleList:
    return nn.ModuleList(Expert() for _ in range(count))


def stacked(*shapes: tuple[int, ...], kind: str = "Experts") -> nn.Module:
    return parts(kind, **{f"w{i}": nn.Parameter(torch.zeros(shape)) for i, shape in enumerate(shapes)})


FOUND = {
    "a list and a Linear": (parts(moe=parts(gate=line(4), experts=experts())), ["moe.gate"]),
    "no name but the class": (parts(moe=parts("MixtureLayer", choose=line(4), ffs=experts())), ["moe.choose"]),
    "no name but the Linear's": (parts(f=parts(routing=line(4), ffs=experts())), ["f.routing"]),
    "no name but the list's": (parts(f=parts(pick=line(4), my_experts=experts())), ["f.pick"]),
    "nothing speaks for experts": (parts(f=parts(pick=line(4), blocks=experts()), head=line(4)), []),
    "another number": (parts(f=parts(pick=line(5), experts=experts())), []),
    "the module around": (parts(f=parts(router=line(4), mlp=parts(experts=experts()))), ["f.router"]),
    "weights in one tensor": (parts(f=parts(gate=line(4), experts=stacked((4, 16, 8), (4, 8, 16)))), ["f.gate"]),
    "weights beside the gate": (parts("MoE", gate=line(4), w1=nn.Parameter(torch.zeros(4, 16, 8))), ["gate"]),
    "a gate with its own matrix": (
        parts(f=parts(gate=parts("TopKGate", weight=nn.Parameter(torch.zeros(4, 16))), experts=experts())),
        ["f.gate"],
    ),
    "a Linear inside a router": (
        parts(f=parts(router=parts("Router", layer=line(4)), experts=experts())),
        ["f.router.layer"],
    ),
    "a Linear that an adapter wraps": (
        parts(f=parts(pick=parts("Lora", out_features=4, base_layer=line(4), lora_B=line(4, 2)), experts=experts())),
        ["f.pick"],
    ),
    "noisy gating": (parts(f=parts(w_noise=line(4), w_gate=line(4), experts=experts())), ["f.w_gate"]),
    "the gate of a shared expert": (
        parts(f=parts(gate=line(4), shared_expert_gate=line(1), shared_expert=Expert(), experts=experts())),
        ["f.gate"],
    ),
    "another gate of the same size": (
        parts(f=parts(input_gate=line(4), router=parts("R", proj=line(4)), experts=experts())),
        ["f.router.proj"],
    ),
    "two projections without a name": (parts(f=parts(a=line(4), b=line(4), experts=experts())), []),
    "one router a step, one bank": (
        parts(routers=nn.ModuleList([line(4), line(4)]), bank=experts()),
        ["routers.0", "routers.1"],
    ),
    "by name, with a top-k beside": (parts(f=parts(gate=line(4), top_k=2)), ["f.gate"]),
    "by name, without": (parts(f=parts(gate=line(4))), []),
    "the gate of a gated unit": (parts(f=parts(gate=line(16), top_k=2, up=line(16))), []),
    "by name, with a top-k beside, beside one by shape": (
        parts(a=parts(gate=line(4), experts=experts()), f=parts(gate=line(6), top_k=2)),
        ["a.gate", "f.gate"],
    ),
    "experts that cannot be counted": (parts(f=parts(router=parts("Router", layer=line(4), k=2))), ["f.router.layer"]),
    "a gate that may give ids": (parts(f=parts(gate=parts("Mystery"))), ["f.gate"]),
    "layers of attention": (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 4), []),
    "recurrent and convolutional": (nn.Sequential(nn.GLU(), nn.LSTM(8, 8), nn.Conv1d(4, 4, 3), nn.Linear(8, 4)), []),
}


@pytest.mark.parametrize("layout", FOUND)
def test_what_is_found(layout):
    model, names = FOUND[layout]
    assert [router.name for router in find_routers(model)] == names
    compiled = nn.Module()
    compiled._orig_mod = model
    assert [router.name for router in find_routers(compiled)] == names, "a wrapper's own name is left out"


def test_what_is_read_of_attributes():
    config = parts("Config")
    config.num_experts_per_tok = 3
    model = parts(f=parts(gate=line(4), experts=experts()))
    model.config = config
    (router,) = find_routers(model)
    assert (router.num_experts, router.top_k, router.scale) == (4, 3, None)
    model.f.top_k = 2  # what stands nearer counts
    model.f.gate.routed_scaling_factor = 2.5
    (router,) = find_routers(model)
    assert (router.top_k, router.scale) == (2, 2.5)
    model.f.top_k = 9  # more than there are experts: something else
    assert find_routers(model)[0].top_k == 3


@pytest.mark.parametrize("place", ["the model", "its feed-forward layer"])
def test_a_configuration_that_counts_the_experts_of_a_router_found_by_name_is_read(place):
    config = parts("Config")
    config.num_experts, config.num_experts_per_tok = 4, 3
    experts_2d = parts("Experts", w=nn.Parameter(torch.zeros(64, 16)))
    model = parts(f=parts(router=parts("Router", proj=line(4)), experts=experts_2d))
    (model if place == "the model" else model.f).config = config
    (router,) = find_routers(model)
    assert (router.name, router.top_k, router.around.top_k) == ("f.router.proj", 3, 3)
    config.num_experts = 5  # of something else
    assert find_routers(model)[0].top_k is None


def test_a_gate_of_an_attention_is_no_router_beside_one_known_by_its_experts():
    model = parts(moe=parts(gate=line(4), experts=experts()), self_attn=parts(gate=line(6), top_k=2))
    assert {router.name: router.must_give_ids for router in find_routers(model)} == {
        "moe.gate": False,
        "self_attn.gate": True,
    }


def test_what_an_expert_costs():
    (listed,) = find_routers(parts(f=parts(gate=line(4), experts=experts())))
    assert (listed.params_per_expert, listed.flops_per_token) == (1024, 2048)
    (tensor,) = find_routers(parts(f=parts(gate=line(4), experts=stacked((4, 16, 8), (4, 8, 16)))))
    assert (tensor.params_per_expert, tensor.flops_per_token) == (256, 512)
    unequal = nn.ModuleList([Expert(), nn.Linear(16, 16)])
    (unknown,) = find_routers(parts(f=parts(gate=line(2), experts=unequal)))
    assert (unknown.params_per_expert, unknown.flops_per_token) == (0, 0)
