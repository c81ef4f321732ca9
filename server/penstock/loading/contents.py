"""What the files of a model's weights hold, whichever format they are of. Must not import torch."""

from pathlib import Path

from penstock.gguf import reading
from penstock.loading import model_files
from penstock.loading.model_files import Contents, WeightFiles


def catalogue(folder: Path, files: WeightFiles) -> Contents:
    """Every tensor of the files, safetensors or GGUF, by the name that it is asked for. Raises UnusableModel."""
    read = reading.catalogue if files.names[0].endswith(".gguf") else model_files.catalogue
    return read(folder, files)
