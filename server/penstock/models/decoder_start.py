"""What the decoder of an encoder-decoder begins with. Asked by the worker and by the doctor."""

from typing import Any

from penstock.errors import UnusableModel
from penstock.loading.model_files import GENERATION
from penstock.models.model import ModelConfig


def decoder_start_ids(
    config: dict[str, Any],
    generation: dict[str, Any] | None,
    shape: ModelConfig,
) -> list[int]:
    """What the decoder of an encoder-decoder begins with: its start and, where one is forced, its first token.

    generation_config.json, where it is there, says it before config.json. Raises UnusableModel.
    """
    if not shape.has_encoder:
        return []

    def token(name: str, default: int | None) -> int | None:
        for file, source in ((GENERATION, generation or {}), ("config.json", config)):
            value = source.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < shape.vocab_size:
                raise UnusableModel(f"{file}: {name} is {value!r}, not a token below {shape.vocab_size}")
            return value
        return default

    start = token("decoder_start_token_id", shape.default_start)
    if start is None:
        start = token("bos_token_id", None)
    if start is None:
        raise UnusableModel(
            "generation_config.json: no decoder_start_token_id, which says what the decoder begins with"
        )
    forced = token("forced_bos_token_id", None)
    return [start] if forced is None else [start, forced]
