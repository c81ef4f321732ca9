"""Patterns of module names, as keys of rank_pattern and alpha_pattern. Used by `config`. Must not import torch.

PEFT takes keys for regular expressions, of which one that somebody chose may take for ever. So only a part of them is read, for which
time grows with the length of pattern and name.
"""

import re

LONGEST_PATTERN = 512

# What matches one character: a dot is any, as in regular expressions.
CHARACTER = r"(?:[A-Za-z0-9_.-]|\\[.d_-]|\[\^?[A-Za-z0-9_.-]+\])"
GROUP = rf"\((?:\?:)?(?:{CHARACTER}+\|)*{CHARACTER}+\)"
# A run of characters of which none is repeated, or one thing that may be.
TOKEN = re.compile(rf"(?P<run>(?:{CHARACTER}(?![*+?]))+)|(?P<one>{CHARACTER}|{GROUP})(?P<times>[*+?]?)")


class NamePattern:
    """Matches a whole name or what is behind one of its dots, as PEFT does it. Raises ValueError for what is not read."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_PATTERN:
            raise ValueError(f"patterns have at most {LONGEST_PATTERN} characters")
        self._whole = text.startswith("^")
        # What may be there, each of one length, and how often.
        self._tokens: list[tuple[list[re.Pattern[str]], str]] = []
        rest = text.removeprefix("^").removesuffix("$")
        at = 0
        while at < len(rest):
            token = TOKEN.match(rest, at)
            try:
                if token is None:
                    raise re.error("unread")
                found = token["run"] or token["one"]
                either = found[1:-1].removeprefix("?:").split("|") if found[0] == "(" else [found]
                self._tokens.append(([re.compile(one) for one in either], token["times"] or ""))
            except re.error:
                raise ValueError(
                    "only letters, digits, _ - . and of regular expressions ^ $ \\d [...] (a|b) * + ? are read"
                ) from None
            at = token.end()

    def matches(self, name: str) -> bool:
        """Whether a module of this name is meant."""
        places = {0} if self._whole else {0, *(at + 1 for at, letter in enumerate(name) if letter == ".")}
        for either, times in self._tokens:
            begun = places
            places = _behind(either, name, places)
            if times in ("*", "+"):
                newest = places
                while newest:
                    newest = _behind(either, name, newest) - places
                    places |= newest
            if times in ("*", "?"):
                places = places | begun
            if not places:
                return False
        return len(name) in places


def _behind(either: list[re.Pattern[str]], name: str, places: set[int]) -> set[int]:
    """Where one of them ends, of these places at which it may begin."""
    return {found.end() for at in places for one in either if (found := one.match(name, at)) is not None}
