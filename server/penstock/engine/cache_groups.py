"""What a model keeps of a sequence, by what its layers attend to: the groups of caches that Prepare answers and the doctor tells."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.engine.kv_cache import numbers_of
from penstock.engine.state_cache import state_bytes
from penstock.engine.tables import Tables

if TYPE_CHECKING:
    from penstock.models.model import ModelConfig
    from penstock.parallel.group import TensorGroup


@dataclass(frozen=True)
class CacheGroup:
    """As in the contract. `bytes` are those that one rank keeps of a token, or of a state."""

    kind: Literal["full", "window", "chunk", "state", "index"]
    tables: int
    reach: int
    layers: int  # over all stages
    bytes: int

    def told(self) -> str:
        """For a reader, as in `10 layers attend to the last 1,024 tokens`."""
        one = self.layers == 1
        layers = f"{self.layers} layer{'' if one else 's'}"
        attend = "attends" if one else "attend"
        match self.kind:
            case "full":
                return f"{layers} {attend} to all tokens"
            case "window":
                return f"{layers} {attend} to the last {self.reach:,}"
            case "chunk":
                return f"{layers} {attend} to chunks of {self.reach:,}"
            case "index":
                return f"{layers} choose{'s' if one else ''} what {'it attends' if one else 'they attend'} to"
            case "state":
                return f"{layers} keep{'s' if one else ''} a state"


def cache_groups(
    config: "ModelConfig",
    tables: Tables,
    group: "TensorGroup",
    row_bytes: int,
    itemsize: int,
    drafted: int = 0,
) -> list[CacheGroup]:
    """In the order of their tables. `row_bytes`: that a layer's cache on this rank has of a token. `drafted`: bytes that a
    draft model keeps of a token, in the pages of layers that attend to everything."""
    mine = set(numbers_of(config.cached_layers(group)))
    index_keys = config.index_keys
    index_bytes = itemsize * sum(index_keys[layer] for layer in config.layers_of(group))

    def kept(first: int, count: int) -> tuple[int, int]:
        layers = {at for at, (table, _) in enumerate(tables.of) if first <= table < first + count}
        return len(layers), len(layers & mine) * row_bytes

    groups = []
    if tables.full:
        layers, held = kept(0, tables.full)
        groups.append(CacheGroup("full", tables.full, 0, layers, held - index_bytes + drafted))
    for of_window in tables.windows:
        window = of_window.window
        kind: Literal["chunk", "window"] = "chunk" if window.chunked else "window"
        groups.append(CacheGroup(kind, of_window.count, window.size, *kept(of_window.first, of_window.count)))
    choosing = sum(numbers > 0 for numbers in index_keys)
    if choosing:
        groups.append(CacheGroup("index", 0, 0, choosing, index_bytes))
    if config.has_state:
        held = state_bytes(config.state_shapes(group), itemsize)
        groups.append(CacheGroup("state", 0, 0, config.layers_with_state, held))
    return groups
