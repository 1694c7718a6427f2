"""What stands for unused slots and unknown decisions, as writers may give it, and steps without any module."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.runs.arrays import RunArrays, routed, run_info
from tokenpaths.engine.base.errors import UserError
from tokenpaths.engine.base.records import NOT_OFFERED_KIND, UNRECORDED_KIND, UNUSED_KIND, ModuleInfo, SampleRecord
from tokenpaths.engine.store.ask.run import Run
from tokenpaths.engine.store.file.checks import check_ribbons, check_run

EXPERTS, TOP_K = 4, 2
INFO = run_info("varied", num_steps=2, num_modules=EXPERTS + TOP_K, top_k=TOP_K)
MODULES = [ModuleInfo(step, m, f"expert {m}", "expert", 1, 1) for step in range(2) for m in range(EXPERTS)]
UNUSED = [ModuleInfo(step, EXPERTS + k, "unused slot", UNUSED_KIND, 0, 0) for step in range(2) for k in range(TOP_K)]
AVAILABLE = np.ones((2, EXPERTS + TOP_K), dtype=bool)


@pytest.mark.parametrize("step", [[3, 1], [3, 4], [4, 5]])
def test_unused_slots_are_the_last_of_their_step(step: list[int], tmp_path: Path) -> None:
    ids = np.array([[[0, 1], step]], dtype=np.uint8)
    check_ribbons(ids, INFO, AVAILABLE, unused_from=EXPERTS)
    weights = np.where(ids < EXPERTS, np.array([0.5, 0.25]), 0.0)
    batch = routed([SampleRecord(1)], ids, weights=weights)
    with Run.open(RunArrays(INFO, [*MODULES, *UNUSED], [batch]).write(tmp_path)) as run:
        assert run.sample(0)["tokens"][0]["ribbon"] == [[0, 1], [module for module in step if module < EXPERTS]]


@pytest.mark.parametrize("step", [[4, 3], [3, 5], [5, 4], [5, 0]])
def test_unused_slots_in_another_order_are_refused(step: list[int], tmp_path: Path) -> None:
    ids = np.array([[[0, 1], [0, 1]], [[0, 1], step]])
    message = rf"token 1 has \[{step[0]}, {step[1]}\] at step 1: its unused slots should be the last ones, numbered 4"
    with pytest.raises(UserError, match=message):
        check_ribbons(ids, INFO, AVAILABLE, unused_from=EXPERTS)
    weights = np.where(ids < EXPERTS, 0.5, 0.0)
    arrays = RunArrays(INFO, [*MODULES, *UNUSED], [routed([SampleRecord(2)], ids, weights=weights)])
    with pytest.raises(UserError, match=message) as caught:
        arrays.write(tmp_path)
    assert caught.value.field == "module_ids"
    fine = routed([SampleRecord(2)], np.zeros_like(ids) + np.arange(TOP_K))
    with pytest.raises(UserError, match=message):
        RunArrays(INFO, [*MODULES, *UNUSED], [fine], twin=ids).write(tmp_path)


@pytest.mark.parametrize("kind", [UNUSED_KIND, UNRECORDED_KIND])
def test_a_stand_in_is_of_one_step(kind: str) -> None:
    everywhere = [ModuleInfo(None, EXPERTS + slot, "", kind, 0, 0) for slot in range(TOP_K)]
    with pytest.raises(UserError, match=f"module 4 is of kind '{kind}', so it stands for something at one step"):
        check_run(INFO, [*MODULES, *everywhere])


@pytest.mark.parametrize("kind", [UNUSED_KIND, UNRECORDED_KIND])
def test_every_step_offers_a_module(kind: str) -> None:
    stand_ins = [ModuleInfo(s, EXPERTS + slot, "", kind, 0, 0) for s in range(2) for slot in range(TOP_K)]
    check_run(INFO, [*MODULES, *stand_ins])
    with pytest.raises(UserError, match="step 1 offers no module") as caught:
        check_run(INFO, [*MODULES[:EXPERTS], *stand_ins])
    assert caught.value.field == "modules"
    check_run(INFO, [ModuleInfo(None, m, "", "mlp", 1, 1) for m in range(EXPERTS)] + stand_ins)


def test_a_step_takes_a_shared_module_out_of_its_choice(tmp_path: Path) -> None:
    info = run_info("shared", num_steps=2, num_modules=3, top_k=1)
    shared = [ModuleInfo(None, m, "", "mlp", 1, 1) for m in range(3)]
    without = ModuleInfo(1, 2, "", NOT_OFFERED_KIND, 0, 0)
    check_run(info, [*shared, without])
    ids = np.array([[[2], [0]], [[1], [1]]])
    with Run.open(RunArrays(info, [*shared, without], [routed([SampleRecord(2)], ids)]).write(tmp_path)) as run:
        assert [run.bank.offered(step) for step in range(2)] == [[0, 1, 2], [0, 1]]
        assert not run.bank.own_modules
        assert run.sample(0)["tokens"][1]["reuse"] == 0.5, "one module at two steps"
        assert len(run.info()["modules"]) == 3
    with pytest.raises(UserError, match="step 1 offers no module 2"):
        RunArrays(info, [*shared, without], [routed([SampleRecord(2)], ids[::-1, ::-1])]).write(tmp_path / "other")
    with pytest.raises(UserError, match="step 1 offers no module"):
        check_run(info, [*shared, *(ModuleInfo(1, m, "", NOT_OFFERED_KIND, 0, 0) for m in range(3))])
    with pytest.raises(UserError, match="module 2 is not offered at step 1, but no step shares it"):
        check_run(info, [*shared[:2], ModuleInfo(0, 2, "", "mlp", 1, 1), without])
    with pytest.raises(UserError, match="stands for something at one step"):
        check_run(info, [*shared, ModuleInfo(None, 2, "", NOT_OFFERED_KIND, 0, 0)])
