"""What the documents say of the repository is there: files and names of the glossary, files that other pages name, links
between pages. Starts no server.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "decisions").glob("*.md"),
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    ]
)
GLOSSARY = ROOT / "docs" / "glossary.md"

# Rooms whose files pages name, and what is in them that is built or installed.
ROOMS = (
    "benchmarks",
    "deploy",
    "docs",
    "examples",
    "integration-tests",
    "kernels",
    "launcher",
    "proto",
    "router",
    "server",
)
SKIPPED = {"__pycache__", "node_modules", "target"}

# Files of other projects, and of nobody yet, that pages name.
ELSEWHERE = {
    "env_runtime.rs",
    "envs.py",
    "server.rs",
    "server/penstock/models/recipes/FAMILY.py",
    "transformers_flash_causal_lm.py",
}

QUOTED = re.compile(r"`([^`\s]+)`")
SOURCE = re.compile(r"[\w./*-]+\.(?:rs|py|mjs|proto)")
# No image without a text, which is how TGI's prompts have theirs.
LINK = re.compile(r"(?<!!\[)\]\(([^)\s]+)\)")


def files() -> Iterator[Path]:
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and not SKIPPED & set(path.parts):
                yield path


FILES = {path.relative_to(ROOT).as_posix(): path for path in files()}


def named(path: str) -> list[Path]:
    """The files that a page means: a path from the root, or the end of one (`scheduler/core.rs`)."""
    return [file for name, file in FILES.items() if f"/{name}".endswith(f"/{path}")]


def in_folder(path: str) -> list[Path]:
    """The files below a folder that a page names, with a slash at its end."""
    return [file for name, file in FILES.items() if f"/{path}" in f"/{name}"]


def missing(where: str) -> list[str]:
    """What a cell of the third column names and is not there: files, and names that none of its files holds."""
    words = QUOTED.findall(where)
    sources = [word for word in words if SOURCE.fullmatch(word) or word.endswith("/")]
    holding = {word: in_folder(word) if word.endswith("/") else named(word) for word in sources}
    wrong = [word for word, found in holding.items() if not found]
    texts = [
        file.read_text()
        for found in holding.values()
        for file in found
        if file.suffix in (".rs", ".py", ".proto")
    ]
    names = [word for word in words if word not in sources]
    return wrong + [
        name for name in names if not any(re.search(rf"\b{re.escape(name)}\b", text) for text in texts)
    ]


def rows() -> dict[str, str]:
    """Term of the glossary to where it is: the lines of its tables that have five columns."""
    found = {}
    for line in GLOSSARY.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "term":
            found[cells[0]] = cells[2]
    return found


@pytest.mark.parametrize("term", rows())
def test_a_term_of_the_glossary_is_where_it_says(term: str) -> None:
    where = rows()[term]
    assert QUOTED.search(where), f"{term}: nowhere"
    assert not missing(where), f"{term}: the code has no {', '.join(missing(where))}"


def test_what_is_not_there_is_missed() -> None:
    assert missing("`scheduler/core.rs` `Core`") == []
    assert missing("`scheduler/no_such_file.rs`") == ["scheduler/no_such_file.rs"]
    assert missing("`scheduler/core.rs` `NoSuchName`") == ["NoSuchName"]
    assert missing("`launcher/src/` `NoSuchName`, `no-such-folder/`") == ["no-such-folder/", "NoSuchName"]
    assert len(rows()) > 60, "most of the glossary was read"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_names_files_that_are_there(page: Path) -> None:
    text = page.read_text()
    sources = {word for word in QUOTED.findall(text) if SOURCE.fullmatch(word) and "*" not in word}
    gone = sorted(word for word in sources if not named(word) and word not in ELSEWHERE)
    assert not gone, f"no file is {', '.join(gone)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name} links to {target}"


def anchors(page: Path) -> set[str]:
    """Of the headings, as Markdown's readers make them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in titles}


def performance() -> Any:
    """benchmarks/performance.py, which writes a page."""
    where = importlib.util.spec_from_file_location("performance", ROOT / "benchmarks" / "performance.py")
    assert where is not None and where.loader is not None
    module = sys.modules["performance"] = importlib.util.module_from_spec(where)
    where.loader.exec_module(module)
    return module


def test_the_page_of_figures_is_what_was_recorded() -> None:
    module = performance()
    assert module.page(module.FIGURES.read_text().splitlines()) == module.PAGE.read_text(), (
        "python benchmarks/performance.py --write"
    )


RUN = {"run": "a", "date": "2026-01-01", "processor": "p", "load": "none", "command": "c"}
FIGURE = {"section": "http", "in": "a", "model": "m", "what": "w", "case": "8", "unit": "s", "value": 1.5}


def test_a_figure_stands_beside_its_run() -> None:
    page = performance().page(
        [
            json.dumps(line)
            for line in (RUN, {**FIGURE, "low": 1, "high": 2000}, {"section": "http", "not measured": "more"})
        ]
    )
    assert "| m | w | 1.5 s (1-2,000) | 1 |" in page and "\n- more\n" in page
    assert "\n1. 2026-01-01; p; none; `c`\n" in page


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([FIGURE], "line 1: KeyError('a')"),
        ([RUN, FIGURE, FIGURE], "has a figure for '8' above"),
        ([RUN, RUN], "a run of this name is above"),
        ([{key: value for key, value in RUN.items() if key != "load"}], "a run lacks ['load']"),
        ([RUN, {**FIGURE, "section": "sideways"}], "line 2: KeyError('sideways')"),
    ],
)
def test_a_figure_without_its_run_is_refused(lines: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        performance().page([json.dumps(line) for line in lines])


def test_nobody_is_told_to_install_a_package_that_is_not_there() -> None:
    """`penstock` is no package of PyPI's: who registers the name there would have code on machines that ask for it."""
    told = re.compile(r"""(?:pip3?|uv|pipx|uvx)\s[^\n`;&|]*?(?<![\w./-])['"]?penstock(?![\w/*.-])""")
    for line in ("pip install penstock", "pip3 install -U 'penstock[torch]'", 'uv pip install "penstock>=1"'):
        assert told.search(line), line
    for line in ("pip install .", "pip install 'torch>=2.8'\npenstock", "pip install dist/penstock-1.whl"):
        assert not told.search(line), line
    told_by = {
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in {*PAGES, *files(), ROOT / "Makefile", ROOT / "Dockerfile", ROOT / "pyproject.toml"}
        - {Path(__file__)}
        if path.suffix in ("", ".md", ".py", ".rs", ".toml", ".js", ".html")
        for found in told.finditer(path.read_text(errors="ignore"))
    }
    assert not told_by


def test_the_torch_that_a_start_asks_for_is_that_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (torch,) = project["optional-dependencies"]["torch"]
    pages = ("docs/launcher.md", "docs/gpus.md")
    for name in ("server/penstock/loading/host.py", *pages):
        assert f"pip install '{torch}'" in (ROOT / name).read_text(), name


def test_who_comes_from_tgi_is_told_what_differs() -> None:
    """README leads to the page, which names each flag of TGI's that is refused or has no effect."""
    page = (ROOT / "docs" / "from-tgi.md").read_text()
    assert "(docs/from-tgi.md)" in (ROOT / "README.md").read_text()
    table = (
        (ROOT / "launcher" / "src" / "tgi_flags.rs")
        .read_text()
        .partition("const FLAGS")[2]
        .partition("];")[0]
    )
    flags = re.findall(r'(?:not_yet\(|no_effect\(|name: )"([a-z-]+)"', table)
    assert len(flags) > 10, "the table was read"
    assert not [flag for flag in flags if f"`--{flag}`" not in page]


def test_who_comes_from_another_server_finds_each_flag_that_a_start_explains() -> None:
    page = (ROOT / "docs" / "from-others.md").read_text()
    assert "(docs/from-others.md)" in (ROOT / "README.md").read_text()
    source = (ROOT / "launcher" / "src" / "usage_errors.rs").read_text()
    table = source.partition("const ELSEWHERE")[2].partition("];")[0]
    names = [
        name for names in re.findall(r"\(\s*&\[([^\]]*)\]", table) for name in re.findall(r'"([^"]+)"', names)
    ]
    assert len(names) > 30, "the table was read"
    assert not [name for name in names if f"`{name}`" not in page]


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = (ROOT / "docs" / "README.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert not sorted(page for page in pages if f"({page})" not in listed)


@pytest.mark.parametrize("name", ["README.md", "docs/gpus.md"])
def test_who_keeps_a_server_is_sent_to_the_release_build(name: str) -> None:
    """What `make install` puts into .venv is built as the tests need it."""
    text = (ROOT / name).read_text()
    assert ".venv/bin/penstock" in text
    assert "make deploy PREFIX=" in text and "/opt/penstock/bin/penstock" in text
