"""Makes a tokenizer.json's text of Mistral's own file, tekken.json, which Magistral, Devstral and Mistral Small 3.2 have in place of one.

Tokens, merges and the names of special tokens are those that transformers' converter makes, without mistral-common. What this adds is
from mistral-common (`Tekkenizer`): the special tokens that files up to version 7 leave to it, and `<s>` before every text.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

FILE = "tekken.json"
BEGIN = "<s>"
# Of files that say nothing of them, by their numbers.
SPECIAL = (
    *("<unk>", BEGIN, "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
LAST_WITHOUT = 7


def convert(file: Path) -> str:
    """The text of a tokenizer.json. Raises what transformers raises for a file that it cannot read, or ValueError."""
    from tokenizers import processors
    from transformers.integrations.mistral.tokenizer import MistralConverter

    given: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / FILE
        whole.write_text(json.dumps(with_special_tokens(given)), encoding="utf-8")
        made = MistralConverter(str(whole)).converted()
    begin = made.token_to_id(BEGIN)
    if begin is None:
        raise ValueError(f"it has no token {BEGIN}")
    first = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A {BEGIN} $B", special_tokens=[(BEGIN, begin)]
    )
    made.post_processor = processors.Sequence([made.post_processor, first])
    text: str = made.to_str()
    return text


def with_special_tokens(given: dict[str, Any]) -> dict[str, Any]:
    """The file with the tokens that those of its version leave out. Raises ValueError."""
    if given.get("special_tokens") is not None:
        return given
    version = str(given["config"].get("version"))
    if not re.fullmatch(r"v\d+", version) or int(version[1:]) > LAST_WITHOUT:
        raise ValueError(f"it is of version {version} and has no special_tokens")
    special = [{"rank": at, "token_str": name, "is_control": True} for at, name in enumerate(SPECIAL)]
    return {**given, "special_tokens": special}
