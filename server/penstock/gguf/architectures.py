"""Every `general.architecture` that is read. Must not import torch.

What the fields are called: `gguf-py/gguf/constants.py` of llama.cpp; what a converter writes into them, and does to tensors: its `conversion`.
"""

from penstock.errors import UnusableModel
from penstock.gguf import dense, experts, gemma4, recurrent
from penstock.gguf.architecture import Architecture
from penstock.gguf.container import Header
from penstock.gguf.fields import ARCHITECTURE

ARCHITECTURES: dict[str, Architecture] = {
    **dense.ARCHITECTURES,
    **experts.ARCHITECTURES,
    **gemma4.ARCHITECTURES,
    **recurrent.ARCHITECTURES,
}
"""By its name."""


def architecture_of(header: Header) -> Architecture:
    """Raises UnusableModel for one that is not read."""
    name = header.metadata.get(ARCHITECTURE)
    found = ARCHITECTURES.get(name) if isinstance(name, str) else None
    if found is None:
        raise UnusableModel(
            f"{ARCHITECTURE} is {str(name)[:80]!r}, and of GGUF files {', '.join(sorted(ARCHITECTURES))} are read: serve the model's safetensors files"
        )
    return found
