"""Published config.json files, as other projects quote them in tests, fixtures and documents: `quoted/NAME.json`, one for each model.

`source` says what the quotation was found in (2026-11-27 to 30, by searching public repositories) and what is doubtful about it, `found_in` a
repository and path of it or of a copy that agrees, where one could be read (of a site without a stored file the excerpt of a search); `rows` are
the rows of the tables of docs/models.md that the model is of. Published files themselves were not at hand: a quotation may leave out keys,
and those that transformers' class has to say then are named in `of_class`. unread.py says which of a file's fields no recipe
has to read.
"""

import json
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from textwrap import fill
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
FOLDER = Path(__file__).parent / "quoted"
BEGIN, END = "<!-- quoted: begin -->", "<!-- quoted: end -->"

# Where a config.json has its text model, if not at its top.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True)
class Quoted:
    """What is quoted of a model's config.json."""

    source: str
    found_in: tuple[str, ...]
    rows: tuple[str, ...]
    config: dict[str, Any]
    of_class: tuple[str, ...]

    @property
    def text(self) -> dict[str, Any]:
        """What it says of its text model."""
        return text_of(self.config)

    @property
    def parts(self) -> tuple[str, ...]:
        """Where in it that is."""
        return parts_of(self.config)

    def whole(self) -> dict[str, Any]:
        """It with what transformers' class says of the rest."""
        if not self.of_class:
            return self.config
        transformers: Any = import_module("transformers")
        full = transformers.CONFIG_MAPPING[self.config["model_type"]]().get_text_config().to_dict()
        stated = {name: full[name] for name in self.of_class if full.get(name) is not None}
        part = next((part for part in PARTS if part in self.config), None)
        if part is None:
            return {**stated, **self.config}
        return {**self.config, part: {**stated, **self.config[part]}}


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config.json that describes its text model."""
    for part in PARTS:
        if part in config:
            return text_of(config[part])
    return config


def parts_of(config: dict[str, Any]) -> tuple[str, ...]:
    """The names that lead to it."""
    part = next((part for part in PARTS if part in config), None)
    return () if part is None else (part, *parts_of(config[part]))


def _read(path: Path) -> tuple[str, Quoted]:
    held = json.loads(path.read_text())
    return held["model"], Quoted(
        held["source"],
        tuple(held.get("found_in", ())),
        tuple(held["rows"]),
        held["config"],
        tuple(held.get("of_class", ())),
    )


# By the model's name.
QUOTED: dict[str, Quoted] = dict(map(_read, sorted(FOLDER.glob("*.json"))))


def rows() -> list[str]:
    """The rows of the tables of docs/models.md that name an architecture, in their order."""
    lines = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    named = [cells[1].strip() for cells in lines if len(cells) > 5 and cells[2].strip().startswith("`")]
    return list(dict.fromkeys(named))


def paragraph() -> str:
    """What docs/models.md says of them."""
    of_row = {row: [model for model, one in QUOTED.items() if row in one.rows] for row in rows()}
    found = [f"{row} ({', '.join(models)})" for row, models in of_row.items() if models]
    missing = [row for row, models in of_row.items() if not models]
    parts = (
        f"Of {len(QUOTED)} models, which are of {len(found)} of the {len(of_row)} rows of this page's tables: {'; '.join(found)}.",
        f"Of {sum(bool(one.found_in) for one in QUOTED.values())} the files name a repository and path.",
        f"Nothing is quoted of {'; '.join(missing)}: of these, shapes are those of transformers' classes alone.",
    )
    return "\n\n".join(fill(part, 160, break_long_words=False, break_on_hyphens=False) for part in parts)


def written() -> str:
    """The page with this paragraph in it."""
    before, rest = PAGE.read_text().split(BEGIN)
    return f"{before}{BEGIN}\n{paragraph()}\n{END}{rest.split(END)[1]}"
