"""The step without host synchronisation: equal to the naive one, forward and backward, and reading nothing back."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tokenpaths.engine.data.tokenizer import TextTokenizer
from tokenpaths.engine.models.bank import bank as bank_module
from tokenpaths.engine.models.bank import device_step as device_step_module
from tokenpaths.engine.models.bank.bank import grouped_step, naive_step
from tokenpaths.engine.models.bank.device_step import device_step, fits_step, group_entries, indices, varlen_attention
from tokenpaths.engine.models.bank.modules import Block
from tokenpaths.engine.models.bank.stacked_bank import stack_bank
from tokenpaths.engine.models.dna import DNA, DNAConfig
from tokenpaths.engine.train.corpora import TextCorpus
from tokenpaths.engine.train.loop import _iterate, open_run
from tokenpaths.engine.train.recipes import Recipe

BANKS = {
    "blocks": ["transformer"] * 4,
    "blocks and identities": ["identity", "transformer", "transformer", "identity", "transformer"],
    "halves": ["mlp", "attention", "mlp", "attention", "attention"],
    "everything": ["mlp", "identity", "transformer", "attention", "transformer", "mlp"],
    "perceptrons": ["mlp", "mlp", "identity"],
    "one": ["attention"],
}


def bank_of(kinds: list[str], width: int = 16) -> torch.nn.ModuleList:
    torch.manual_seed(1)
    bank = torch.nn.ModuleList(Block(kind, width, 2, 2 * width) for kind in kinds)
    for parameter in bank.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return bank


def routing(batch: int, tokens: int, top_k: int, modules: int, skewed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    scores = torch.rand(batch, tokens, modules)
    if skewed:
        scores = scores + 3 * torch.rand(batch, 1, modules)
    weights, ids = scores.softmax(-1).topk(top_k)
    return ids, weights


@pytest.mark.parametrize("kinds", BANKS.values(), ids=BANKS)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize(("causal", "skewed"), [(True, False), (False, True)])
def test_equals_the_naive_step_forward_and_backward(kinds, top_k, causal, skewed):
    if top_k > len(kinds):
        pytest.skip("fewer modules than choices")
    bank = bank_of(kinds)
    ids, weights = routing(3, 11, top_k, len(kinds), skewed)
    made = []
    for step in (naive_step, device_step):
        h = torch.randn(3, 11, 16, generator=torch.Generator().manual_seed(4)).requires_grad_()
        w = weights.clone().requires_grad_()
        bank.zero_grad()
        out = step(bank, h, ids, w, causal=causal)
        (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
        grads = {name: p.grad.clone() for name, p in bank.named_parameters() if p.grad is not None}
        made.append((out.detach(), h.grad, w.grad, grads))
    (a, ha, wa, ga), (b, hb, wb, gb) = made
    torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(hb, ha, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(wb, wa, rtol=1e-4, atol=1e-5)
    for name, grad in gb.items():
        torch.testing.assert_close(grad, ga.get(name, torch.zeros_like(grad)), rtol=1e-4, atol=1e-4, msg=name)


def test_what_kernels_leave_undefined_is_never_seen(monkeypatch):
    """Rows behind the last group are poisoned as an uninitialised buffer might be, forward and backward."""
    from torch.nn import functional

    true_grouped = functional.grouped_mm

    class Poisoned(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, last):
            ctx.save_for_backward(last)
            return torch.where((torch.arange(len(x)) < last).unsqueeze(1), x, torch.nan)

        @staticmethod
        def backward(ctx, grad):
            (last,) = ctx.saved_tensors
            return torch.where((torch.arange(len(grad)) < last).unsqueeze(1), grad, torch.nan), None

    def poisoned(x, weights, offs):
        # The product's own gradient never reads rows behind the last group; ours must not hand them on.
        clean = torch.where((torch.arange(len(x)) < offs[-1]).unsqueeze(1), x, 0)
        return Poisoned.apply(true_grouped(clean, weights, offs=offs), offs[-1])

    bank = bank_of(BANKS["everything"])
    ids, weights = routing(2, 9, 2, 6, True)
    h = torch.randn(2, 9, 16, requires_grad=True)
    expected = naive_step(bank, h, ids, weights, causal=True)
    monkeypatch.setattr(functional, "grouped_mm", poisoned)
    out = device_step(bank, h, ids, weights, causal=True)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    out.sum().backward()
    assert h.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in bank.parameters() if p.grad is not None)


def test_groups_lie_where_a_loop_finds_them():
    ids = torch.tensor([[2, 0], [1, 2], [0, 1], [2, 1]])  # two samples of two tokens; module 1 does nothing
    made = group_entries(ids, indices((0, 2, 1), 2, 2, 8, torch.device("cpu")), 2)
    pairs = [(token // 2, slot) for slot in (0, 2) for token in range(4) for k in range(2) if ids[token, k] == slot]
    assert made.bounds.tolist() == [0, 1, 2, 4, 5]
    assert made.ends_W.tolist() == [2, 5]
    assert [(int(e) // 2) // 2 for e in made.order_P[:5]] == [sample for sample, _ in pairs]
    assert made.order_P[made.back_P].tolist() == list(range(8))


def test_nothing_is_read_back(monkeypatch):
    """Imaginary tensors hold no values: an ``item``, a ``nonzero`` or a shape that depends on data would fail."""
    # On the CPU the attention is a loop, left out here; the kernel itself takes the ends of segments from the device.
    monkeypatch.setattr(
        "tokenpaths.engine.models.bank.device_step.varlen_attention", lambda qkv, *_, **__: qkv[:, : qkv.shape[1] // 3]
    )
    monkeypatch.setattr(
        "tokenpaths.engine.models.bank.device_step.indices", indices.__wrapped__
    )  # keep no imaginary tensor
    bank = bank_of(BANKS["everything"], width=64)
    with FakeTensorMode():
        for part in bank.modules():
            for name, weight in [(n, w) for n, w in part._parameters.items() if w is not None]:
                part._parameters[name] = torch.nn.Parameter(torch.empty(weight.shape, dtype=torch.bfloat16))
        h = torch.empty(4, 32, 64, dtype=torch.bfloat16, requires_grad=True)
        ids, weights = torch.empty(4, 32, 2, dtype=torch.long), torch.empty(4, 32, 2, dtype=torch.bfloat16)
        out = device_step(bank, h, ids, weights, causal=True)
        assert (out.shape, out.dtype) == (h.shape, torch.bfloat16)
        out.float().square().sum().backward()
        assert h.grad.shape == h.shape
        with pytest.raises(Exception, match="bincount|item|nonzero"):  # the other fast path does read back
            grouped_step(bank, h, ids, weights, causal=True)


def test_segments_of_attention_see_only_themselves():
    qkv = torch.randn(7, 3 * 8)
    whole = varlen_attention(qkv, torch.tensor([0, 3, 3, 7], dtype=torch.int32), 7, 2, causal=True)
    torch.testing.assert_close(
        whole[:3], varlen_attention(qkv[:3], torch.tensor([0, 3], dtype=torch.int32), 3, 2, causal=True)
    )
    torch.testing.assert_close(whole[0], qkv[0, 16:])


def test_a_whole_model_runs_on_it():
    config = DNAConfig(
        modality="text",
        width=32,
        heads=2,
        mlp_width=64,
        backbone=1,
        steps=3,
        transformers=4,
        identities=1,
        top_k=2,
        vocab_size=50,
        context=20,
    )
    torch.manual_seed(0)
    model = DNA(config).eval()
    ids = torch.randint(50, (3, 20))
    with torch.no_grad():
        expected = model(ids).logits
        model.execution = "device"
        torch.testing.assert_close(model(ids).logits, expected, rtol=1e-4, atol=1e-5)


def test_ends_reach_the_kernel_one_behind_the_other(monkeypatch):
    """A GPU's grouped product reads them by address: ends with a stride gave nan there, and nothing amiss on a CPU."""
    seen = []

    def product(x, weights, *, offs):
        seen.append(offs.is_contiguous() and offs.dtype == torch.int32)
        return torch._grouped_mm(x, weights, offs=offs)

    monkeypatch.setattr("torch.nn.functional.grouped_mm", product)
    bank = bank_of(BANKS["everything"])
    ids, weights = routing(3, 11, 2, 6, True)
    device_step(bank, torch.randn(3, 11, 16), ids, weights, causal=True)
    assert len(seen) == 4
    assert all(seen)


@pytest.mark.parametrize(
    ("kinds", "heads", "hidden", "dtype", "capability", "fits"),
    [
        (["transformer", "identity", "mlp"], 2, 128, torch.bfloat16, (9, 0), True),
        (["transformer"], 2, 128, torch.bfloat16, (10, 0), True),
        (["transformer"], 2, 128, torch.float32, (9, 0), False),
        (["transformer"], 2, 128, torch.bfloat16, (8, 0), False),
        (["transformer"], 2, 128, torch.bfloat16, (12, 0), False),
        (["attention"], 16, 128, torch.bfloat16, (9, 0), False),  # heads of 4
        (["mlp"], 2, 100, torch.bfloat16, (9, 0), False),
        (["identity"], 2, 100, torch.bfloat16, (9, 0), True),
    ],
)
def test_chosen_where_the_kernels_take_the_rows(monkeypatch, kinds, heads, hidden, dtype, capability, fits):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(device_step_module, "kernels_hold", lambda *_: False)
    bank = torch.nn.ModuleList(Block(kind, 64, heads, hidden) for kind in kinds)
    with FakeTensorMode():
        assert fits_step(bank, torch.empty(2, 3, 64, device="cuda", dtype=dtype)) is fits


@pytest.mark.parametrize(("heads", "fits"), [(2, True), (4, False)])
def test_chosen_on_any_gpu_where_our_kernels_hold(monkeypatch, heads, fits):
    """Whatever its generation, in float32, and with rows of any size; heads of a size that they do not take: not."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 6))
    monkeypatch.setattr(device_step_module, "kernels_hold", lambda device, dtype, head: head in (None, 30))
    with FakeTensorMode():
        h = torch.empty(2, 3, 60, device="cuda", dtype=torch.float32)
        assert fits_step(torch.nn.ModuleList([Block("mlp", 60, 1, 100)]), h)
        assert fits_step(torch.nn.ModuleList([Block("mlp", 60, 1, 100), Block("attention", 60, heads, 8)]), h) is fits


@pytest.mark.parametrize("width", [20, 520])
def test_not_chosen_for_rows_and_heads_of_other_sizes(monkeypatch, width):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(device_step_module, "kernels_hold", lambda *_: False)
    with FakeTensorMode():
        h = torch.empty(2, 3, width, device="cuda", dtype=torch.bfloat16)
    assert not fits_step(torch.nn.ModuleList([Block("attention", width, 1, 8)]), h)


def test_the_grouped_step_hands_over_where_it_fits(monkeypatch):
    monkeypatch.setattr(bank_module, "fits_step", lambda modules, h: True)
    monkeypatch.setattr(bank_module, "device_step", lambda modules, h, ids, weights, *, causal: h + causal)
    h = torch.zeros(1, 3, 16)
    ids, weights = routing(1, 3, 1, 1, False)
    assert torch.equal(grouped_step(bank_of(["mlp"]), h, ids, weights, causal=True), h + 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_equal_on_a_gpu_in_bfloat16():
    bank = bank_of(BANKS["everything"], width=64).cuda()
    ids, weights = routing(4, 32, 2, 6, True)
    h = torch.randn(4, 32, 64)
    expected = naive_step(bank.float().cpu(), h, ids, weights, causal=True)
    made = device_step(
        bank.to("cuda", torch.bfloat16), h.cuda().bfloat16(), ids.cuda(), weights.cuda().bfloat16(), causal=True
    )
    torch.testing.assert_close(made.float().cpu(), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("shape", [(2, 0), (0, 3)])
def test_no_tokens_are_no_tokens(shape):
    h = torch.zeros(*shape, 16)
    made = device_step(
        bank_of(["transformer"] * 2), h, torch.zeros(*shape, 1).long(), torch.zeros(*shape, 1), causal=True
    )
    assert made.shape == h.shape


def test_weights_are_stacked_once_a_pass(monkeypatch):
    """At every step it cost a GPU more than the step itself."""
    made = []

    def counted(*given):
        made.append(stack_bank(*given))
        return made[-1]

    monkeypatch.setattr("tokenpaths.engine.models.dna.stack_bank", counted)
    config = DNAConfig(
        modality="text", width=16, heads=2, mlp_width=16, backbone=0, steps=3, transformers=3, vocab_size=20, context=8
    )
    model = DNA(config, execution="device")
    ids = torch.randint(20, (2, 8))
    model.training_loss(ids, ids)[0].backward()
    assert len(made) == 1
    model.choose(ids)
    assert len(made) == 2
    with torch.no_grad():
        model.bank[0].mlp.up.weight.mul_(2)
    model(ids)
    assert not torch.equal(made[2].perceptron.enter, made[0].perceptron.enter), "weights of the pass before"


@pytest.mark.parametrize("kinds", [name for name, kinds in BANKS.items() if len(kinds) > 1])
def test_a_module_without_tokens_takes_no_step(monkeypatch, tmp_path, kinds):
    """Neither decay nor the momentum of its last visit may move it: as with modules that are not stacked."""
    counts = {f"{kind}s" if kind != "identity" else "identities": BANKS[kinds].count(kind) for kind in BANKS[kinds]}
    sizes = dict(width=16, heads=2, mlp_width=32, backbone=0, steps=2, vocab_size=20, context=8)
    config = DNAConfig(modality="text", **sizes, **counts)
    # A large eps: without, what is left of equal sums in another order would decide the sign of a step.
    files = dict(name="t", train_file="t", val_file="t")
    recipe = Recipe(
        **files, model=config, batch_size=2, iterations=5, weight_decay=0.1, warmup=0, eps=1.0, bfloat16=False
    )
    corpus = TextCorpus(
        torch.randint(20, (200,), generator=torch.Generator().manual_seed(0)), TextTokenizer.train(["path"], 260)
    )
    idle = next(m for m, kind in enumerate(config.kinds) if kind != "identity")
    made = []
    for stacked in (False, True):
        monkeypatch.setattr("tokenpaths.engine.models.dna.fits_step", lambda *_, fits=stacked: fits)
        run, weights = open_run(recipe, tmp_path / str(stacked), torch.device("cpu")), []
        for iteration in range(recipe.iterations):
            run.model.bias[:, idle] = 100.0 if iteration == 1 else -100.0
            _iterate(run, corpus, 100)
            weights.append(torch.cat([p.detach().flatten() for p in run.model.bank[idle].parameters()]))
        assert torch.equal(weights[1], weights[4])
        assert not torch.equal(weights[0], weights[1])
        made.append(dict(run.model.named_parameters()))
    for name, parameter in made[1].items():
        torch.testing.assert_close(parameter, made[0][name], rtol=1e-4, atol=1e-6, msg=name)
