"""A server whose model gives the answer that its prompt asks for (`prompts.echoed`): in Hermes' calls, and with thoughts
between `<think>` and `</think>`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import Tokenizer

from checkpoints import SHIPPED, repeating_llama
from launched import Launched
from prompts import ECHO_END, ECHO_TOKENS


def launch_echo(folder: Path) -> Launched:
    """It answers with the last `ECHO_TOKENS` tokens of its prompt, up to `ECHO_END`."""
    model = folder / "model"
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    special = [token["id"] for token in json.loads(tokenizer.to_str())["added_tokens"]]
    repeating_llama(model, period=ECHO_TOKENS, vocabulary=tokenizer.get_vocab_size(), special=special)
    shutil.copy(SHIPPED / "tokenizer.json", model)
    template = "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"
    (model / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "eos_token": ECHO_END})
    )
    (model / "generation_config.json").write_text(
        json.dumps({"eos_token_id": tokenizer.token_to_id(ECHO_END)})
    )
    parsers = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")
    return Launched(folder / "run", "--model-id", str(model), *parsers)
