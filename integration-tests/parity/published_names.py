"""Names of the tensors of published checkpoints, as indexes of their files list them: `published_names/NAME.json`, one for each index found.

`of` is the model that the index is of, `found_in` the repository and path where it could be read and `config` the quotation (quoted.py) whose config.json it is read with, `changes`
what the text's part says otherwise. In `names` {} stands for any number; where a number means something, for a layer behind the last one, it
is written. `is_whole`: every kind of name that the model's text has was seen; of a long index only pages were. `parameters` are numbers in all tensors of the text, where the
index or the model's card says how many.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quoted import QUOTED, parts_of

FOLDER = Path(__file__).parent / "published_names"
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Index:
    """What is known of the names of one checkpoint."""

    found_in: str
    of: str
    config: str
    names: tuple[str, ...]
    is_whole: bool
    changes: dict[str, Any]
    parameters: int | None

    def whole_config(self) -> dict[str, Any]:
        """The config.json that the checkpoint is read with."""
        return _changed(QUOTED[self.config].whole(), parts_of(QUOTED[self.config].config), self.changes)


def _changed(config: dict[str, Any], parts: tuple[str, ...], changes: dict[str, Any]) -> dict[str, Any]:
    if not parts:
        return {**config, **changes}
    return {**config, parts[0]: _changed(config[parts[0]], parts[1:], changes)}


def kind_of_name(name: str) -> str:
    """A tensor's name with {} for every number."""
    return NUMBER.sub("{}", name)


def _read(path: Path) -> tuple[str, Index]:
    held = json.loads(path.read_text())
    return path.stem, Index(
        held["found_in"],
        held["of"],
        held["config"],
        tuple(held["names"]),
        held["is_whole"],
        held.get("changes", {}),
        held.get("parameters"),
    )


INDEXES: dict[str, Index] = dict(map(_read, sorted(FOLDER.glob("*.json"))))
