"""What Describe answers: the loaded model, as the router has to know it."""

from typing import Any

from penstock.engine.engine import Engine
from penstock.engine.preparation import held_state_bytes, kv_bytes_per_token, weight_bytes
from penstock.engine.slots import MAX_TOP_TOKENS
from penstock.engine.tables import BLOCK_SIZE
from penstock.proto import penstock_pb2 as pb
from penstock.proto.contract import CONTRACT


def description_of(
    engine: Engine,
    config: dict[str, Any],
    eos_ids: list[int],
    decoder_start_ids: list[int],
    rank: int,
    world: int,
    stages: int,
) -> pb.ModelDescription:
    """What Describe answers."""
    shape = engine.model.config
    held = weight_bytes(engine)
    side = shape.max_side_positions
    drafter = engine.drafter
    return pb.ModelDescription(
        model_type=str(config.get("model_type", "")),
        recipe=engine.recipe,
        vocab_size=shape.vocab_size,
        eos_ids=eos_ids,
        dtype=str(engine.dtype).removeprefix("torch."),
        device=str(engine.device),
        device_name=engine.device_name,
        block_size=BLOCK_SIZE,
        # The decoder's start is beside input and output.
        max_positions=shape.max_positions - (len(decoder_start_ids) if side else 0),
        parameters=engine.model.parameters,
        weight_bytes=held,
        kv_bytes_per_token=kv_bytes_per_token(engine),
        rank=rank,
        world_size=world,
        stages=stages,
        max_top_tokens=min(MAX_TOP_TOKENS, shape.vocab_size),
        contract=CONTRACT,
        decoder_start_ids=decoder_start_ids,
        max_side_positions=side,
        positions_go_on=shape.positions_go_on,
        state_bytes=held_state_bytes(engine),
        draft_model=None
        if drafter is None
        else pb.DraftModel(model_type=drafter.model_type, parameters=drafter.parameters),
        adapters=[pb.Adapter(name=one.name, digest=one.digest) for one in engine.adapters],
    )
