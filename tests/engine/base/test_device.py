"""When training takes bfloat16 on a processor."""

from collections.abc import Iterator

import pytest
import torch

from tokenpaths.engine.base import device


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    device.cpu_gains_by_bfloat16.cache_clear()
    yield
    device.cpu_gains_by_bfloat16.cache_clear()


@pytest.mark.parametrize(("seconds", "gains"), [(0.5, True), (0.9, False), (2.0, False)])
def test_bfloat16_is_taken_where_the_clock_says_so(
    monkeypatch: pytest.MonkeyPatch, seconds: float, gains: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(device, "_product_time", {torch.bfloat16: seconds, torch.float32: 1.0}.__getitem__)
    assert device.cpu_gains_by_bfloat16() is gains


def test_a_processor_without_bfloat16_products_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(device, "_product_time", lambda dtype: pytest.fail("timed"))
    assert not device.cpu_gains_by_bfloat16()


def test_only_a_processor_asks_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cpu_gains_by_bfloat16", lambda: pytest.fail("timed"))
    assert device.gains_by_bfloat16(torch.device("cuda", 1))
    assert not device.gains_by_bfloat16(torch.device("mps"))
    for answer in (True, False):
        monkeypatch.setattr(device, "cpu_gains_by_bfloat16", lambda answer=answer: answer)
        assert device.gains_by_bfloat16(torch.device("cpu")) is answer


def test_a_product_takes_time() -> None:
    assert 0 < device._product_time(torch.float32) < 60
