"""LoRA adapters: what their folders hold, read and checked at the start of a worker. Must not import torch."""

from penstock.adapters.adapter import Adapter, Pair
from penstock.adapters.reading import read, sources

__all__ = ["Adapter", "Pair", "read", "sources"]
