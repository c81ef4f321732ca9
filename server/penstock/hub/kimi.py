"""Makes a tokenizer.json's text of tiktoken.model, which Moonshot's models (Kimi, Moonlight) have in place of one.

The file has tokens in the order in which they are merged. How a text is cut into words is in code of the repositories (tokenization_kimi.py,
of older ones tokenization_moonshot.py), which is not run; in all of them it is the same. Special tokens are those that tokenizer_config.json
names, by their numbers. transformers reads such files, too, and cuts words as GPT-4 does, which gives other tokens.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import AddedToken

FILE = "tiktoken.model"
CLASS = "TikTokenTokenizer"
CODE = ("tokenization_kimi", "tokenization_moonshot")
# Numbers behind those of the file, for special tokens; the few that the configuration does not name are reserved.
SPECIAL = 256

# Words are of Chinese characters, or of letters without them, where a capital one begins a new word.
HAN = r"\p{Han}"
UPPER = rf"[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{HAN}]]"
LOWER = rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^{HAN}]]"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
AFTER = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
WORDS = "|".join(
    (
        f"[{HAN}]+",
        f"{BEFORE}{UPPER}*{LOWER}+{AFTER}",
        f"{BEFORE}{UPPER}+{LOWER}*{AFTER}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)

# How every tiktoken file begins: a token in base64, and its rank.
BEGINS = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


def convert(folder: Path) -> str:
    """The text of a tokenizer.json. Raises OSError, and ValueError for files that are not Moonshot's."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    config = configuration(folder)
    ranks = read_ranks(folder / FILE)
    letters = byte_letters()

    def spelled(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocabulary = {spelled(token): rank for token, rank in ranks.items()}
    merges = [(spelled(first), spelled(second)) for first, second in merges_of(ranks)]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    special = special_tokens(config, len(ranks))
    made.add_tokens(special)
    for number, token in enumerate(special, len(ranks)):
        if made.token_to_id(token.content) != number:
            raise ValueError(f"its special token {token.content} would not have the number {number}")
    text: str = made.to_str()
    return text


def configuration(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json. Raises ValueError where it names another class: that may cut words in another way."""
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if not isinstance(config, dict):
        raise ValueError("it has no tokenizer_config.json, which names the special tokens")
    code = config.get("auto_map")
    named = code.get("AutoTokenizer") if isinstance(code, dict) else code
    classes = [str(name) for name in (named if isinstance(named, list) else [named]) if name]
    # As `REPOSITORY--MODULE.CLASS` where the code is in another repository.
    modules = {name.split("--")[-1].split(".")[0] for name in classes}
    if config.get("tokenizer_class") != CLASS or not modules <= set(CODE):
        raise ValueError(
            f"its class is {', '.join(classes) or config.get('tokenizer_class')}, and of {FILE} only Moonshot's "
            f"({', '.join(f'{module}.{CLASS}' for module in CODE)}) is read: add a tokenizer.json"
        )
    return config


def read_ranks(file: Path) -> dict[bytes, int]:
    """The tokens with their numbers, which are the order of their merges, too. Raises OSError and ValueError."""
    ranks: dict[bytes, int] = {}
    for at, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError as error:
            raise ValueError(f"line {at} is no token with its rank") from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise ValueError(f"the ranks of its {len(ranks)} tokens are not 0 to {len(ranks) - 1}")
    lacking = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if lacking:
        raise ValueError(f"it has no token for the byte {lacking[0]}")
    return ranks


def merges_of(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Pairs of tokens that are a token together, in the order of that token's rank: any of them is merged, however the token itself came about."""
    pairs = [
        (rank, ranks[token[:at]], ranks[token[at:]])
        for token, rank in ranks.items()
        for at in range(1, len(token))
        if token[:at] in ranks and token[at:] in ranks
    ]
    tokens = {rank: token for token, rank in ranks.items()}
    return [(tokens[first], tokens[second]) for _, first, second in sorted(pairs)]


def byte_letters() -> list[str]:
    """The character that stands for each byte in vocabularies of byte-level BPE: itself where it can be printed (GPT-2's `bytes_to_unicode`)."""
    printed = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = (chr(256 + at) for at in range(256))
    return [chr(byte) if byte in printed else next(others) for byte in range(256)]


def special_tokens(config: dict[str, Any], first: int) -> list[AddedToken]:
    """Those that have the numbers from `first` on. Raises ValueError."""
    from tokenizers import AddedToken

    given = config.get("added_tokens_decoder")
    if not isinstance(given, dict) or not given:
        raise ValueError("tokenizer_config.json names no special tokens (added_tokens_decoder)")
    numbers = range(first, first + SPECIAL)
    named = {}
    for number, token in given.items():
        content = token.get("content") if isinstance(token, dict) else None
        if not isinstance(content, str) or not number.isdecimal():
            raise ValueError("added_tokens_decoder of tokenizer_config.json is not of numbers and tokens")
        if int(number) not in numbers:
            raise ValueError(
                f"tokenizer_config.json gives {content} the number {number}, which is not one of the {SPECIAL} behind the "
                f"file's {first} tokens"
            )
        named[int(number)] = AddedToken(content, special=token.get("special") is True, normalized=False)
    return [
        named.get(number) or AddedToken(f"<|reserved_token_{number}|>", special=True, normalized=False)
        for number in numbers
    ]


def is_ranks(file: Path) -> bool:
    """Whether a file is of tiktoken's form, whatever its name. Raises OSError."""
    with file.open("rb") as opened:
        return BEGINS.match(opened.read(4096)) is not None
