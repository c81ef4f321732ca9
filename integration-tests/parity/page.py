"""docs/models.md: its table is what the parity tests saw; the rest of the page stays as it is.

The tests run in several processes: each adds a line of what it saw to the file that PENSTOCK_SEEN names, and `test_the_page`
reads them all.
"""

import json
import os
from pathlib import Path

from families import FAMILIES

from penstock.models.architectures import RECIPES
from penstock.models.config import DecoderConfig
from penstock.models.recipes import read_config
from penstock.models.recorder import unknown_choice

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- families: begin -->", "<!-- families: end -->"
SEEN = "PENSTOCK_SEEN"
COLUMNS = ("prefill", "chunks", "decode", "prefix hit", "ragged batch", "TP=2", "PP=2", "greedy text")


def saw(family: str, column: str, what: str) -> None:
    """A test saw this of a family, beside what was seen before."""
    if SEEN in os.environ:
        with open(os.environ[SEEN], "a") as lines:
            lines.write(json.dumps((family, column, what)) + "\n")


def all_seen() -> dict[str, dict[str, str]]:
    """Family to column of the table to what was seen there."""
    found: dict[str, dict[str, str]] = {family: {} for family in FAMILIES}
    with open(os.environ[SEEN]) as lines:
        for family, column, what in map(json.loads, lines):
            before = found[family].get(column)
            found[family][column] = what if before is None else f"{before}, {what}"
    return found


def written(seen: dict[str, dict[str, str]]) -> str:
    """The page with this table in it."""
    page = PAGE.read_text()
    lines = [
        "| family | architecture | recipe | as transformers in | on a CPU in bf16 |",
        "|---|---|---|---|---|",
    ]
    for family, found in seen.items():
        architecture = FAMILIES[family]["architectures"][0]
        lines.append(
            f"| {family} | `{architecture}` | `{RECIPES[architecture]}` | {cell(found)} | {runs(family)} |"
        )
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    table = "\n".join(lines)
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def runs(family: str) -> str:
    """What runs the family on a CPU in bf16, in one process: the engine, or torch and why."""
    shape = read_config(FAMILIES[family])
    assert isinstance(shape, DecoderConfig)
    why = unknown_choice(shape)
    return "engine" if why is None else f"torch: {why}"


def cell(found: dict[str, str]) -> str:
    """What was seen in every column; each column by its name, if they differ."""
    columns = {column: found.get(column, "no") for column in COLUMNS}
    if len(set(columns.values())) == 1:
        return columns[COLUMNS[0]]
    return "; ".join(f"{column}: {what}" for column, what in columns.items())
