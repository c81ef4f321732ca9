"""Lines of code by room: without tests, comments, docstrings, blanks and what is generated.

    python benchmarks/lines_of_code.py

The table of `RESULTS.md`. Rust and C++ are read line by line, Python with its own tokenizer.
"""

import io
import re
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Room: folders, the longest first where one is within another.
ROOMS = {
    "router/template (Jinja)": "router/template/src/",
    "router/constraint (grammars)": "router/constraint/src/",
    "router/output (tool formats)": "router/output/src/",
    "router/core": "router/core/src/",
    "router (http, telemetry)": "router/src/",
    "launcher": "launcher/src/",
    "proto": "proto/src/",
    "server (worker)": "server/penstock/",
    "kernels, Python": "kernels/penstock_kernels/",
    "kernels, C++": "kernels/csrc/",
}
LANGUAGES = {".rs": "Rust", ".py": "Python", ".cpp": "C++", ".h": "C++"}
# The mock worker is the tests' and the benchmarks'; the model that ships was trained once.
LEFT_OUT = re.compile(r"/tests?(/|\.rs)|/samples\.rs|/mock/|generated|_pb2|/tiny/")


def braced(text: str) -> int:
    """What a line opens less what it closes, outside of strings and characters."""
    code = re.sub(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])\'', "", text)
    return code.count("{") - code.count("}")


def rust_or_cpp(text: str) -> int:
    """Lines that are no comment, no blank, and not within an item that is `#[cfg(test)]`."""
    count = depth = 0
    in_comment = in_tests = opened = False
    for line in map(str.strip, text.splitlines()):
        if in_comment:
            in_comment = "*/" not in line
            continue
        if line.startswith("/*"):
            in_comment = "*/" not in line
            continue
        if not line or line.startswith("//"):
            continue
        if line.startswith("#[cfg(test)]"):
            in_tests, opened, depth = True, False, 0
            continue
        if in_tests:
            depth += braced(line)
            opened = opened or "{" in line
            in_tests = depth > 0 if opened else not line.endswith(";")
            continue
        count += 1
    return count


def python(text: str) -> int:
    """Lines with a token that is neither a comment nor a docstring."""
    lines: set[int] = set()
    begins = True  # a string that begins a statement by itself is no code
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            begins = True
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER):
            if not (begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(lines)


def main() -> None:
    """Prints the table."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    found: Counter[tuple[str, str]] = Counter()
    for name in listed.stdout.splitlines():
        language = LANGUAGES.get(Path(name).suffix)
        room = next((room for room, folder in ROOMS.items() if name.startswith(folder)), None)
        if language is None or room is None or LEFT_OUT.search(f"/{name}") or not (ROOT / name).exists():
            continue
        text = (ROOT / name).read_text()
        found[room, language] += python(text) if language == "Python" else rust_or_cpp(text)
    for (room, language), lines in found.items():
        print(f"| {room} | {language} | {lines:,} |")
    for language in dict.fromkeys(LANGUAGES.values()):
        print(f"| all | {language} | {sum(n for (_, of), n in found.items() if of == language):,} |")


if __name__ == "__main__":
    main()
