"""The Triton kernels, run by Triton's interpreter: no GPU is needed, but Triton is (``pip install triton``).

The interpreter is chosen before Triton is imported, so each test runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here; it comes with PyTorch for CUDA")

BEFORE = """
import torch
from torch.nn import functional as F
torch.manual_seed(0)
"""


def interpret(code: str, interpreted: str = "1") -> None:
    """Run ``code`` with kernels interpreted; an assertion that fails there fails here."""
    environment = {**os.environ, "TRITON_INTERPRET": interpreted}
    ended = subprocess.run(
        [sys.executable, "-c", BEFORE + textwrap.dedent(code)], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("heads", "head"), [(2, 16), (1, 32)])
def test_segments_of_attention_equal_a_loop_forward_and_backward(causal, heads, head):
    """Segments that are empty, of one row, of a tile, of a tile and a row, of several; rows behind the last one."""
    interpret(f"""
        from tokenpaths.engine.models.bank.varlen import attention_loop
        from tokenpaths.engine.models.bank.kernels.segment_kernels import segment_attention

        sizes = [3, 0, 70, 64, 0, 1, 65, 130, 0]
        bounds = torch.tensor([0, *sizes]).cumsum(0).int()
        last = sum(sizes)
        qkv = torch.randn(last + 9, {3 * heads * head}, requires_grad=True)
        q, k, v = qkv.view(len(qkv), 3, {heads}, -1).unbind(1)
        wanted = attention_loop(q, k, v, bounds, {causal}).flatten(1)[:last]
        found = segment_attention(qkv, bounds, {heads}, causal={causal})[:last]
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        along = torch.randn_like(wanted)
        a, b = (torch.autograd.grad((y * along).sum(), qkv)[0][:last] for y in (found, wanted))
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    """)


def test_rows_are_gathered_summed_and_normalised():
    interpret("""
        from tokenpaths.engine.models.bank.kernels.rows import norm_rows

        h, tokens, change = torch.randn(7, 24), torch.randint(7, (14,)), torch.randn(14, 24)
        for given in (None, change):
            wanted = F.layer_norm(h[tokens] + (0 if given is None else given), (24,))
            torch.testing.assert_close(norm_rows(h, tokens, given, torch.float32), wanted, rtol=1e-5, atol=1e-6)
    """)


@pytest.mark.parametrize("top_k", [1, 2])
def test_entries_behind_the_last_group_count_nothing(top_k):
    """A kernel leaves their rows undefined; here they are not numbers."""
    interpret(f"""
        from tokenpaths.engine.models.bank.kernels.rows import blend_rows

        entries = 7 * {top_k}
        h, weights, back = torch.randn(7, 24), torch.rand(7, {top_k}), torch.randperm(entries)
        first, second = torch.randn(entries, 24), torch.randn(entries, 24)
        ends = torch.tensor([3, entries - 3], dtype=torch.int32)
        change = torch.cat([(first + second)[:-3], torch.zeros(3, 24)])
        second[-3:] = torch.nan
        wanted = h + (weights.unsqueeze(-1) * change[back].view(7, {top_k}, 24)).sum(dim=1)
        torch.testing.assert_close(blend_rows(h, back, weights, first, second, ends), wanted)
    """)


@pytest.mark.parametrize(("inner", "outer"), [(40, 72), (64, 64), (7, 130)])
def test_each_row_meets_the_weights_of_its_group(inner, outer):
    """Groups that are empty, short, and of several tiles; sizes that no tile divides; gradients of both."""
    interpret(f"""
        from tokenpaths.engine.models.bank.kernels.product import grouped_product

        sizes = [70, 0, 5, 64, 131]
        ends = torch.tensor(sizes).cumsum(0).int()
        last = sum(sizes)
        x = torch.randn(last + 9, {inner}, requires_grad=True)
        weights = torch.randn(5, {outer}, {inner}).transpose(1, 2).requires_grad_()
        wanted = torch.cat([part @ w for part, w in zip(x[:last].split(sizes), weights, strict=True)])
        found = grouped_product(x, weights, ends)[:last]
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
        along = torch.randn_like(wanted)
        a, b = (torch.autograd.grad((y * along).sum(), (x, weights)) for y in (found, wanted))
        torch.testing.assert_close(a[0][:last], b[0][:last], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(a[1], b[1], rtol=1e-4, atol=1e-4)
    """)


def test_the_trial_agrees_and_a_wrong_kernel_does_not():
    interpret("""
        from tokenpaths.engine.models.bank.kernels import segment_kernels as attention, product, rows, trial

        cpu, whole = torch.device("cpu"), torch.float32
        assert trial.try_rows(cpu, whole) < 1e-5
        assert trial.try_attention(cpu, whole, 16) < 1e-5
        for module, name in (
            (attention, "segment_attention"), (product, "grouped_product"), (rows, "norm_rows"), (rows, "blend_rows")
        ):
            right = getattr(module, name)
            for wrong in (1.1, float("nan")):
                setattr(module, name, lambda *a, wrong=wrong, **k: right(*a, **k) * wrong)
                found = trial.try_attention(cpu, whole, 16) if module is attention else trial.try_rows(cpu, whole)
                assert not found < trial.AGREES, (name, wrong, found)
            setattr(module, name, right)
    """)


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_step_without_gradients_is_the_naive_one(top_k):
    """The rows between the products by our kernels: one module, identities alone, a batch of 1, one token."""
    interpret(f"""
        from tests.engine.models.bank.test_device_step import bank_of, routing
        from tokenpaths.engine.models.bank import device_step as module
        from tokenpaths.engine.models.bank.bank import naive_step

        module.kernels_hold = lambda *_: True
        fused, calls = module._fused, []
        module._fused = lambda *given: calls.append(1) or fused(*given)
        for kinds in (["transformer"] * 3, ["transformer", "identity", "identity", "transformer"], ["transformer"] * 2):
            for batch, tokens in ((3, 11), (1, 7), (2, 1)):
                bank = bank_of(kinds, width=24)
                ids, weights = routing(batch, tokens, {top_k}, len(kinds), True)
                if "identity" in kinds and batch == 1:
                    ids = torch.tensor([1, 2][:{top_k}]).expand(batch, tokens, {top_k})
                h = torch.randn(tokens, batch, 24).transpose(0, 1)
                with torch.no_grad():
                    found = module.device_step(bank, h, ids, weights, causal=True)
                    wanted = naive_step(bank, h, ids, weights, causal=True)
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert len(calls) == 9
    """)


def test_a_second_derivative_is_refused():
    """The backward passes have none of their own; silence would be a wrong gradient."""
    interpret("""
        from tokenpaths.engine.models.bank.kernels.product import grouped_product

        x, weights = torch.randn(5, 8, requires_grad=True), torch.randn(1, 8, 8, requires_grad=True)
        y = grouped_product(x, weights, torch.tensor([5], dtype=torch.int32))
        (gradient,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        try:
            gradient.sum().backward()
        except RuntimeError as error:
            assert "once_differentiable" in str(error), error
        else:
            raise AssertionError("a second derivative came back")
    """)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("capability", [86, 90])
def test_they_compile_for_gpus_that_are_not_here(dtype, capability):
    """What the interpreter takes may not compile; and tiles have to fit the memory that the smallest GPUs share."""
    interpret(
        f"""
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from tokenpaths.engine.models.bank.kernels import product, segment_kernels, trial

        dtype, short = torch.{dtype}, "{"*bf16" if dtype == "bfloat16" else "*fp32"}"
        others = dict.fromkeys(["bounds", "tile_ends", "segments", "ends"], "*i32")
        others |= {{"sums": "*fp32", "deltas": "*fp32"}}
        others |= dict.fromkeys(["num_segments", "num_rows", "group_stride", "in_stride", "out_stride"], "i32")

        def shared(kernel, settings):
            settings = dict(settings)
            options = {{name: settings.pop(name) for name in list(settings) if name.startswith("num_")}}
            names = kernel.arg_names
            signature = {{n: "constexpr" if n in settings else others.get(n, short) for n in names}}
            constants = {{(names.index(n),): settings[n] for n in names if n in settings}}
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs={{}})
            return triton.compile(source, target=GPUTarget("cuda", {capability}, 32), options=options).metadata.shared

        longest = trial.LONGEST_WHOLE_HEAD if dtype == torch.float32 else max(trial.HEADS)
        settings = segment_kernels._settings(2, longest, True, dtype)
        kernels = segment_kernels._forward, segment_kernels._backward_queries, segment_kernels._backward_keys
        found = [shared(kernel, settings) for kernel in kernels]
        settings = product._settings(dtype) | {{"INNER": 384, "OUTER": 1536, "PRECISION": product.precision(dtype)}}
        found.append(shared(product._weight_gradient, settings))
        found.append(shared(product._product, settings | {{"GROUPS": 18, "PADDED": 32}}))
        assert max(found) <= 99 * 1024, found
        """,
        interpreted="0",
    )
