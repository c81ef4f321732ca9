"""Writes docs/performance.md from the recorded figures, benchmarks/figures.jsonl.

    python benchmarks/performance.py          # says whether the page is what the figures say
    python benchmarks/performance.py --write

A line of the figures is a run (when, on which processor, beside what, by which command), a figure of a run, or what was not
measured. Figures are added, with their run, by whoever measures; a line that is wrong is taken out, and none is written by hand into
the page. `RESULTS.md` tells more of each.
"""

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES, PAGE = ROOT / "benchmarks" / "figures.jsonl", ROOT / "docs" / "performance.md"

HEAD = """# Performance

What was measured of the CPU engine, and what was not. Written by `benchmarks/performance.py` from `benchmarks/figures.jsonl`; a test fails
where the two differ. Figures are medians with their range, in tokens per second unless a column says otherwise. The models m15, m135 and m1b
have 15 million, 135 million and 1.1 billion random weights. [RESULTS.md](../benchmarks/RESULTS.md) tells more of each run, and
of everything that is no table of models here.
"""

SECTIONS = {
    "http": ("Through the HTTP server", "Whole requests by HTTP, streams at once in the columns."),
    "zen5": (
        "Beside the peers, on Zen 5",
        "Each in its turn on one machine, in one run. Streams at once are of whole requests, prompts of 32 tokens included, but for the library, "
        "which has no server and whose columns are decodes alone.",
    ),
    "zen4": (
        "Beside the peers, on Zen 4",
        "As above, on a slower machine, whose memory read 24 to 44 GB/s.",
    ),
    "peers": (
        "Beside the peers, on Zen 4, an earlier run",
        "As above, each in its turn on one machine. Streams at once are of whole requests, prompts of 32 tokens included, but for the "
        "library, which has no server and whose columns are decodes alone. Memory's speed drifted between 35 and 58 GB/s.",
    ),
    "xeon": (
        "Beside the peers, on an Intel Xeon whose tiles are hidden",
        "As above: AVX-512 with VNNI and BF16, no AMX, as virtual machines have it. Memory read 25 GB/s.",
    ),
    "four": (
        "Four bits beside llama.cpp, on Zen 5",
        "Of one stream the decode alone; 8 and 32 are whole requests, as above.",
    ),
    "avx2": (
        "The engine beside llama.cpp's library, with AVX2 and no more, on Zen 3",
        "Both without a server. All that decodes one stream of m1b is bound by memory.",
    ),
    "contexts": (
        "Behind long prompts, over HTTP",
        "`2k, 8` is what 8 streams decode behind 2,048 tokens each; then what was read of the prompts themselves, one behind the other in one stream.",
    ),
    "arrives": (
        "While a prompt of 4,096 tokens arrives",
        "Milliseconds between the tokens of 8 streams, without it and until its first token is there; and seconds to that token.",
    ),
    "engine": (
        "The engine alone: formats of weights",
        "Steps without router and HTTP, rows in a step in the columns.",
    ),
    "kinds": (
        "The engine alone: experts and recurrent layers",
        "As above, against torch on the same machine.",
    ),
    "isa": (
        "The engine alone: instruction sets",
        "As above; the best one that a processor has is taken by itself.",
    ),
    "draw": (
        "Drawing tokens",
        "What sampling of a step takes, with the engine's pass over all logits in both.",
    ),
    "loss": ("What quantization loses", "Right answers are those of the model's own test."),
    "start": ("Start and memory", "Until the first token is there, or of the load alone."),
}


@dataclass
class Run:
    """Where figures come from."""

    number: int
    told: dict[str, str]

    def __str__(self) -> str:
        said = [
            f"{self.told['date']}",
            self.told["processor"],
            self.told["load"],
            f"`{self.told['command']}`",
        ]
        if "commit" in self.told:
            said.append(f"commit {self.told['commit']}")
        note = f" ({self.told['note']})" if "note" in self.told else ""
        return f"{self.number}. {'; '.join(said)}{note}"


@dataclass
class Section:
    """Figures by row, (model, what), and by column, each with its run; and what is missing."""

    rows: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    runs: dict[tuple[str, str], list[Run]] = field(default_factory=dict)
    cases: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes docs/performance.md from the recorded figures.")
    parser.add_argument("--write", action="store_true", help="write it; otherwise it is compared")
    text = page(FIGURES.read_text().splitlines())
    if parser.parse_args().write:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print(
            f"{PAGE.relative_to(ROOT)} is not what the figures say: python benchmarks/performance.py --write"
        )
        return 1
    return 0


def page(lines: list[str]) -> str:
    """The whole page. Raises ValueError, naming the line, where one is none of the three kinds or names a run that is not above it."""
    runs: dict[str, Run] = {}
    sections = {name: Section() for name in SECTIONS}
    for number, line in enumerate(lines, 1):
        try:
            read(json.loads(line), runs, sections)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{FIGURES.name}, line {number}: {error!r}") from error
    parts = [HEAD]
    for name, (title, lead) in SECTIONS.items():
        parts.append(f"## {title}\n\n{lead}\n\n{table(sections[name])}")
    told = "\n".join(str(run) for run in runs.values())
    parts.append(f"## The runs\n\n{told}\n")
    return "\n".join(parts)


def read(entry: dict[str, Any], runs: dict[str, Run], sections: dict[str, Section]) -> None:
    """Takes one line."""
    if "run" in entry:
        told = {key: str(value) for key, value in entry.items() if key != "run"}
        missing = {"date", "processor", "load", "command"} - told.keys()
        if missing or entry["run"] in runs:
            raise ValueError(f"a run lacks {sorted(missing)}" if missing else "a run of this name is above")
        runs[entry["run"]] = Run(len(runs) + 1, told)
        return
    section = sections[entry["section"]]
    if "not measured" in entry:
        section.missing.append(entry["not measured"])
        return
    run = runs[entry["in"]]
    row, case = (entry["model"], entry["what"]), entry["case"]
    if case in section.rows.setdefault(row, {}):
        raise ValueError(f"{row} has a figure for {case!r} above")
    if case not in section.cases:
        section.cases.append(case)
    section.rows[row][case] = shown(entry)
    known = section.runs.setdefault(row, [])
    if run not in known:
        known.append(run)


def shown(entry: dict[str, Any]) -> str:
    """`415 (323-445)`, `0.5 s`."""
    unit = "" if entry["unit"] == "tokens/s" else f" {entry['unit']}".rstrip()
    spread = f" ({number(entry['low'])}-{number(entry['high'])})" if "low" in entry else ""
    return f"{number(entry['value'])}{unit}{spread}"


def number(value: float) -> str:
    """As it was recorded, with commas."""
    return f"{value:,}"


def table(section: Section) -> str:
    """One row for each model and what ran it; then what was not measured."""
    head = ["model", "", *section.cases, "run"]
    lines = [head, ["---"] * len(head)]
    for (model, what), cells in section.rows.items():
        runs = ", ".join(str(run.number) for run in section.runs[(model, what)])
        lines.append([model, what, *(cells.get(case, "") for case in section.cases), runs])
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    if section.missing:
        text += "\nNot measured:\n\n" + "".join(f"- {what}\n" for what in section.missing)
    return text


if __name__ == "__main__":
    sys.exit(main())
