"""Attention metadata made from the last step's equals what is made anew, and rectangles hold little padding."""

from pathlib import Path

import numpy as np
import pytest
import torch

import checkpoints
import penstock_kernels as ops
from client import DEVICE, row
from driver import Driver
from penstock.engine.attention_metadata import StepMetadata, make_step_metadata
from penstock.engine.decoder_steps import DecoderSteps


def groups(metadata: StepMetadata) -> list[ops.FewGroup | ops.DecodeGroup | ops.ChunkGroup]:
    """All rectangles."""
    ((attention,),) = metadata.attentions
    assert attention is not None
    return [*attention.few, *attention.decodes, *attention.chunks]


@pytest.mark.skipif(DEVICE != "cpu", reason="nothing is continued there")
@pytest.mark.parametrize("rows", [2, 40])
def test_a_continued_layout_equals_one_made_anew(rows: int, tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    driver = Driver(folder, max_slots=64, blocks=400, max_step_tokens=2000)
    engine, maker = driver.engine, driver.engine.step_maker
    assert isinstance(maker, DecoderSteps)
    lengths = [5 + 7 * s % 30 for s in range(rows)]
    driver.step(
        [row(s, [s + 1] * n, 0, [6 * s, 6 * s + 1, 6 * s + 2], start={}) for s, n in enumerate(lengths)]
    )
    continued = 0
    for step in range(40):
        at = [n + step for n in lengths]
        more = [[6 * s + p // 16] if p % 16 == 0 and p >= 48 else [] for s, p in enumerate(at)]
        before = maker.steady
        driver.step([row(s, None, p, b) for s, (p, b) in enumerate(zip(at, more, strict=True))])
        assert maker.steady is not None
        metadata, plan = maker.steady
        continued += before is not None and before[0] is metadata
        anew = make_step_metadata(plan, engine.slots, maker.geometry)
        assert len(groups(metadata)) == 1
        for one, other in zip(groups(metadata), groups(anew), strict=True):
            if one.keys != other.keys:
                continue  # rounded up from another maximum
            for name in one.__slots__:
                ours, theirs = getattr(one, name), getattr(other, name)
                assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs, name
        for name in ("sources_T", "positions_T", "slot_mappings"):
            assert np.array_equal(getattr(metadata, name), getattr(anew, name)), name
        for name in ("sample_rows", "sample_tokens"):
            assert np.array_equal(
                getattr(metadata.logits_indices, name), getattr(anew.logits_indices, name)
            ), name
    assert continued >= 35


def test_a_change_of_rows_is_noticed(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    together, apart = Driver(folder), Driver(folder)
    prompts = [[3, 4, 5], [9, 8], [7] * 6]
    got: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    together.step([row(s, p, 0, [2 * s, 2 * s + 1], start={}) for s, p in enumerate(prompts)])
    position = [len(p) for p in prompts]
    for turn in ([0, 1, 2], [0, 1, 2], [1, 2], [1, 2], [2, 1], [2, 1, 0], [0], [0], [0, 1, 2], [0, 1, 2]):
        result = together.step([row(s, None, position[s]) for s in turn])
        for at, slot in enumerate(turn):
            position[slot] += 1
            got[slot].append(result.sampled[4 * at : 4 * at + 4])
    for slot, prompt in enumerate(prompts):
        apart.step([row(slot, prompt, 0, [2 * slot, 2 * slot + 1], start={})])
        alone = [apart.step([row(slot, None, len(prompt) + i)]).sampled for i in range(len(got[slot]))]
        assert alone == got[slot]


def test_a_long_row_does_not_pad_short_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoints.write(tmp_path, checkpoints.config())
    driver = Driver(folder, max_slots=64, blocks=600, max_sequence_tokens=512, max_step_tokens=4096)
    driver.step([row(0, [1] * 500, 0, list(range(32)), start={})])
    plan_rows = [row(0, None, 500)]
    plan_rows += [row(s, [2], 0, [40 + s], start={}) for s in range(1, 9)]
    plan_rows += [
        row(s, [3] * (200 if s == 9 else 10), 0, list(range(60 + 13 * s, 73 + 13 * s)), start={})
        for s in range(9, 17)
    ]
    shapes: list[tuple[int, int]] = []
    make = make_step_metadata

    def keep(*arguments: object) -> StepMetadata:
        metadata = make(*arguments)  # type: ignore[arg-type]
        for group in groups(metadata):
            queries = (
                group.queries * group.sequences
                if isinstance(group, ops.ChunkGroup)
                else group.end - group.begin
            )
            shapes.append((queries, group.keys))
        return metadata

    monkeypatch.setattr("penstock.engine.decoder_steps.make_step_metadata", keep)
    driver.step(plan_rows)
    assert (
        sum(queries * keys for queries, keys in shapes)
        < 1.5 * (500 + 8 * 32 + 200 * 200 + 7 * 10 * 10) + 4096
    )
