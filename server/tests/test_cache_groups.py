"""What a model keeps of a sequence, as Prepare and the doctor tell it."""

from dataclasses import replace

import checkpoints
from penstock.engine.cache_groups import CacheGroup, cache_groups
from penstock.engine.tables import divide
from penstock.models.config import DecoderConfig, IndexConfig, LatentConfig, Window
from penstock.models.recipes import llama
from penstock.parallel.group import ALONE, Pipeline, TensorGroup

LONGEST, ROW = 10_000, 64


def groups_of(config: DecoderConfig, group: TensorGroup = ALONE) -> list[CacheGroup]:
    return cache_groups(config, divide(config.layer_windows, LONGEST), group, ROW, 2)


def test_each_window_is_a_group() -> None:
    read = llama.read_config({**checkpoints.config(), "num_hidden_layers": 6})
    near, chunk = Window(512), Window(2048, chunked=True)
    layers = read.with_layers(window=[None, near, near, chunk, None, near])
    full, of_near, of_chunk = groups_of(layers)
    assert (full.kind, full.reach, full.layers, full.bytes) == ("full", 0, 2, 2 * ROW)
    assert (of_near.kind, of_near.reach, of_near.layers, of_near.bytes) == ("window", 512, 3, 3 * ROW)
    assert (of_chunk.kind, of_chunk.reach, of_chunk.layers, of_chunk.bytes) == ("chunk", 2048, 1, ROW)
    assert sum(group.tables for group in groups_of(layers)) == divide(layers.layer_windows, LONGEST).count
    assert [group.told() for group in (full, of_near, of_chunk)] == [
        "2 layers attend to all tokens",
        "3 layers attend to the last 512",
        "1 layer attends to chunks of 2,048",
    ]


def test_a_stage_keeps_what_its_layers_do() -> None:
    read = llama.read_config({**checkpoints.config(), "num_hidden_layers": 4})
    layers = read.with_layers(window=[None, None, None, Window(512)])
    stages = [TensorGroup(pipeline=Pipeline(at, 2, TensorGroup(at, 2))) for at in range(2)]
    first, second = (groups_of(layers, stage) for stage in stages)
    assert [(group.layers, group.bytes) for group in first] == [(3, 2 * ROW), (1, 0)]
    assert [(group.layers, group.bytes) for group in second] == [(3, ROW), (1, ROW)]


def test_keys_of_an_index_are_told_beside_those_of_their_layers() -> None:
    read = llama.read_config({**checkpoints.config(), "num_hidden_layers": 4})
    latent = LatentConfig(rank=16, rope_dim=8, plain_dim=8, value_dim=8, index=IndexConfig(2, 8, 64))
    chosen = replace(read, latent=latent).with_layers(choice_of_last=[False, True, False, True])
    full, index = groups_of(chosen)
    assert index == CacheGroup("index", 0, 0, 2, 2 * 8 * 2)
    assert full.bytes + index.bytes == 4 * ROW
    assert index.told() == "2 layers choose what they attend to"
