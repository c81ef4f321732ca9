"""An adapter that is merged into its base model while that is read: `--model-id` names the adapter alone. Must not import torch.

Read by `penstock.loading.checkpoint`, which has each tensor changed that the adapter changes. What it computes is what PEFT's `merge_and_unload` does, of
more than adapters beside a model have: pairs of embeddings and of the head, DoRA (Liu et al., https://arxiv.org/abs/2402.09353), biases, whole modules, single rows of
embeddings. Which names of the file are which is PEFT's `get_peft_model_state_dict`, as of 0.21.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from penstock.adapters import config
from penstock.adapters.adapter import F32, Pair
from penstock.adapters.config import AdapterConfig
from penstock.adapters.names import without_text
from penstock.adapters.reading import PREFIX
from penstock.errors import UnusableModel
from penstock.loading.model_files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    FLOATS,
    Stored,
    WeightFiles,
    listed,
    read_json,
)
from penstock.loading.tensor_reader import TensorReader
from penstock_kernels import tensors

FOLDER = "merged-adapter"
"""In a model's folder: the adapter's."""

KEY = re.compile(
    r"(?P<module>.+?)\.(?:"
    r"lora_(?P<side>[AB])(?:\.default)?\.weight"
    r"|lora_embedding_(?P<of_rows>[AB])(?:\.default)?"
    r"|lora_magnitude_vector(?P<magnitude>)(?:\.default)?(?:\.weight)?"
    r"|lora_B(?:\.default)?\.bias(?P<bias>)"
    r"|token_adapter\.trainable_tokens_delta(?P<tokens>)(?:\.default)?"
    r")"
)
EMBEDDINGS = ("embed_tokens.weight", "wte.weight")
HEADS = ("lm_head.weight", "embed_out.weight")
# Of a whole module that PEFT has put into another one.
INNER = re.compile(
    r"\.(base_layer|token_adapter\.base_layer|modules_to_save(\.default)?|original_module)(?=\.)"
)


@dataclass
class Change:
    """What becomes of one tensor of the base model. Letters: R the rank, I inputs and O outputs of a matrix."""

    pair: Pair | None = None
    is_turned: bool = False
    """The tensor has a row for each input, as embeddings have, and GPT-2's matrices."""
    magnitude_O: F32 | None = None
    """DoRA: each output's row is brought to this length."""
    added: F32 | None = None
    """To a bias."""
    tokens: npt.NDArray[np.int64] | None = None
    """Rows that are replaced,"""
    rows: F32 | None = None
    """and by what."""

    @property
    def is_of_rows(self) -> bool:
        """Whether each row is changed by itself, and none by what the others are."""
        return self.magnitude_O is None or not self.is_turned

    def apply(self, numbers: F32, begin: int) -> None:
        """Changes rows of the tensor, from this one on, in place; whole rows, and where not `is_of_rows` all of them."""
        end = begin + len(numbers)
        if self.added is not None:
            numbers += self.added[begin:end]
            return
        if self.pair is not None:
            a_RI, b_OR = self.pair.a_RI, self.pair.b_OR
            numbers += a_RI[:, begin:end].T @ b_OR.T if self.is_turned else b_OR[begin:end] @ a_RI
        if self.magnitude_O is not None:
            by_output = numbers.T if self.is_turned else numbers
            length_O = np.sqrt(np.einsum("oi,oi->o", by_output, by_output))
            magnitude_O = self.magnitude_O if self.is_turned else self.magnitude_O[begin:end]
            by_output *= (magnitude_O / length_O)[:, np.newaxis]
        if self.tokens is not None and self.rows is not None:
            here = (self.tokens >= begin) & (self.tokens < end)
            numbers[self.tokens[here] - begin] = self.rows[here]

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises UnusableModel where the tensor has another shape than what changes it."""
        wanted: tuple[int | None, ...] = shape
        if self.added is not None:
            wanted = self.added.shape
        elif self.pair is not None:
            outputs, inputs = len(self.pair.b_OR), self.pair.a_RI.shape[1]
            wanted = (inputs, outputs) if self.is_turned else (outputs, inputs)
            if self.magnitude_O is not None and self.magnitude_O.shape != (outputs,):
                raise UnusableModel(
                    f"the merged adapter has {len(self.magnitude_O)} magnitudes for {outputs} outputs of {name}"
                )
        if self.rows is not None and (len(shape) != 2 or self.rows.shape[1:] != shape[1:]):
            wanted = (None, *self.rows.shape[1:])
        if shape != wanted:
            raise UnusableModel(
                f"the merged adapter is of another model: {name} is changed as {list(wanted)}, and is {list(shape)}"
            )
        if self.tokens is not None and int(self.tokens.max(initial=0)) >= shape[0]:
            raise UnusableModel(
                f"the merged adapter changes row {int(self.tokens.max())} of {name}, which has {shape[0]}"
            )


@dataclass(frozen=True)
class Merged:
    """An adapter whose names are those of the base model's tensors."""

    changes: dict[str, Change]
    replaced: dict[str, Stored]
    """What the adapter has whole, in its file, whose name is relative to the model's folder; and a head that was the embedding."""

    @classmethod
    def read(cls, model: Path, base: Mapping[str, Stored]) -> "Merged":
        """Of the adapter in a model's folder. `base`: the tensors of the base model, by the names that they are asked for. Raises UnusableModel, which
        names the tensor or the field.
        """
        folder = model / FOLDER
        fields = read_json(folder, ADAPTER)
        if fields is None:
            raise UnusableModel(f"{folder}: no {ADAPTER}")
        said = config.parse(fields, is_merged=True)
        reader = TensorReader(folder, WeightFiles([ADAPTER_WEIGHTS], None, {}, False))
        try:
            found = _Reading(reader, said, base).read()
            wrong = reader.not_numbers + reader.too_large
            if wrong:
                raise UnusableModel(f"{ADAPTER_WEIGHTS}: NaN or infinite numbers in {listed(wrong, 3)}")
            return found
        finally:
            reader.close()


class _Reading:
    """Sorts what the file holds."""

    def __init__(self, reader: TensorReader, said: AdapterConfig, base: Mapping[str, Stored]) -> None:
        self._reader, self._said, self._base = reader, said, base
        self._by_end = {without_text(name): name for name in base}
        self._sides: dict[str, dict[str, F32]] = {}
        self._merged = Merged({}, {})

    def read(self) -> Merged:
        """All of it."""
        for tensor, one in self._reader.stored.items():
            if not tensor.startswith(PREFIX):
                raise _wrong(tensor, f"names begin with {PREFIX}, as PEFT saves them")
            if one.dtype not in FLOATS:
                raise _wrong(tensor, f"it is in {one.dtype}, and {', '.join(FLOATS)} are read")
            key = KEY.fullmatch(tensor[len(PREFIX) :])
            if key is None:
                self._replace(tensor)
            elif key["side"] or key["of_rows"]:
                sides = self._sides.setdefault(key["module"], {})
                if (key["side"] or key["of_rows"]) in sides:
                    raise _wrong(tensor, "it is there twice")
                sides[key["side"] or key["of_rows"]] = self._numbers(tensor)
                self._change(tensor, key["module"], "weight").is_turned = bool(key["of_rows"])
            elif key["magnitude"] is not None:
                self._change(tensor, key["module"], "weight").magnitude_O = self._numbers(tensor).reshape(-1)
            elif key["bias"] is not None:
                scale = np.float32(self._said.scale_of(key["module"]))
                self._change(tensor, key["module"], "bias").added = self._numbers(tensor) * scale
            else:
                self._tokens(tensor, key["module"])
        for module, sides in self._sides.items():
            self._pair(module, sides)
        return self._merged

    def _pair(self, module: str, sides: dict[str, F32]) -> None:
        lacking = {"A", "B"} - sides.keys()
        if lacking:
            raise UnusableModel(f"{ADAPTER_WEIGHTS}: {module} has no lora_{min(lacking)}")
        a_RI, b_OR = sides["A"], sides["B"]
        rank = self._said.rank_of(module)
        if a_RI.ndim != 2 or b_OR.ndim != 2 or len(a_RI) != rank or b_OR.shape[1] != rank:
            raise UnusableModel(
                f"{ADAPTER_WEIGHTS}: A of {module} is {list(a_RI.shape)} and B {list(b_OR.shape)}, and the rank is {rank} by {ADAPTER} (r, rank_pattern)"
            )
        change = self._change(module, module, "weight")
        change.pair = Pair(a_RI, b_OR * np.float32(self._said.scale_of(module)))
        # PEFT goes by the module's class, and a head is no Conv1D.
        if self._said.has_inputs_first and without_text(f"{module}.weight") not in HEADS:
            change.is_turned = True

    def _tokens(self, tensor: str, module: str) -> None:
        change, rows = self._change(tensor, module, "weight"), self._numbers(tensor)
        tokens = self._said.tokens_of(module)
        if tokens is None or len(tokens) != len(rows):
            raise _wrong(
                tensor, f"{ADAPTER} (trainable_token_indices) does not say which {len(rows)} rows it is"
            )
        change.tokens, change.rows = np.array(tokens, np.int64), rows

    def _replace(self, tensor: str) -> None:
        """A tensor of the base model that the adapter has whole."""
        inner = INNER.sub("", tensor[len(PREFIX) :])
        module, _, kind = inner.rpartition(".")
        if kind not in ("weight", "bias"):
            raise _wrong(tensor, "it is not known what that changes")
        one = self._reader.stored[tensor]
        # The head of a model whose embedding is its head may be in no file of the base model.
        name = self._name(module, kind) or inner
        self._merged.replaced[name] = Stored(f"{FOLDER}/{one.file}", one.dtype, one.shape, one.begin, one.end)

    def _change(self, tensor: str, module: str, kind: str) -> Change:
        name = self._name(module, kind)
        if name is None and without_text(f"{module}.{kind}") == HEADS[0]:
            # A head that is the embedding in the base model is one of its own from now on.
            embedding = next((self._by_end[one] for one in EMBEDDINGS if one in self._by_end), None)
            if embedding is not None:
                name = HEADS[0]
                self._merged.replaced.setdefault(name, self._base[embedding])
        if name is None:
            raise _wrong(tensor, f"the base model has no {module}.{kind}")
        return self._merged.changes.setdefault(name, Change())

    def _name(self, module: str, kind: str) -> str | None:
        """Of the base model's tensor."""
        wanted = f"{module}.{kind}"
        return wanted if wanted in self._base else self._by_end.get(without_text(wanted))

    def _numbers(self, tensor: str) -> F32:
        made = tensors.empty(self._reader.stored[tensor].shape, tensors.float32)
        self._reader.copy(made, tensor, None, None)
        found: F32 = tensors.host(made)
        return found


def _wrong(tensor: str, why: str) -> UnusableModel:
    return UnusableModel(f"{ADAPTER_WEIGHTS}: {tensor[:200]}: {why}")
