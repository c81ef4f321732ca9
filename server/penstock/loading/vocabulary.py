"""Whether two models mean the same by a token's number. Asked of a draft model, by the worker and by the doctor.

Must not import torch, and does not need the tokenizers library: how a text is cut into tokens is the served model's business, and
only what a number stands for has to be the same.
"""

import json
from pathlib import Path
from typing import Any

from penstock.errors import UnusableModel
from penstock.hub.tokenizer import SOURCES
from penstock.loading.model_files import listed, read_text

TOKENIZER = "tokenizer.json"


def refuse_other_vocabulary(served: Path, other: Path) -> None:
    """Raises UnusableModel where the tokenizers of two folders give a number to different texts, or it cannot be told."""
    if (served / TOKENIZER).is_file() and (other / TOKENIZER).is_file():
        first, second = tokens_of(served / TOKENIZER), tokens_of(other / TOKENIZER)
        differing = [
            number for number in first.keys() | second.keys() if first.get(number) != second.get(number)
        ]
        if differing:
            examples = (
                f"{number} is {_shown(first, number)} there and {_shown(second, number)} here"
                for number in sorted(differing)
            )
            raise UnusableModel(
                f"its tokenizer is not the model's: of {len(first)} tokens {len(differing)} differ: {listed(examples, 3)}"
            )
        return
    for names in SOURCES:
        if all((folder / name).is_file() for folder in (served, other) for name in names):
            if all((served / name).read_bytes() == (other / name).read_bytes() for name in names):
                return
            raise UnusableModel(f"its tokenizer is not the model's: {' or '.join(names)} differs")
    raise UnusableModel(
        f"its tokenizer cannot be compared with the model's: they have no file of the same kind ({TOKENIZER}, or what one can "
        "be made of)"
    )


def tokens_of(file: Path) -> dict[int, str]:
    """What each number of a tokenizer.json stands for. Raises UnusableModel."""
    try:
        tokenizer: dict[str, Any] = json.loads(read_text(file))
        vocabulary = tokenizer["model"]["vocab"]
        if isinstance(vocabulary, list):  # of a unigram model: pairs of a piece and its score
            found = {number: str(piece) for number, (piece, _) in enumerate(vocabulary)}
        else:
            found = {int(number): str(piece) for piece, number in vocabulary.items()}
        for added in tokenizer.get("added_tokens") or ():
            found[int(added["id"])] = str(added["content"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UnusableModel(f"{file}: its vocabulary cannot be read: {type(error).__name__}") from error
    return found


def _shown(tokens: dict[int, str], number: int) -> str:
    return repr(tokens[number][:40]) if number in tokens else "no token"
