"""The byte-level BPE tokenizer of the tiny model, trained on the text the model is trained on.

Words are cut so that a word is the same tokens wherever it stands: a space belongs to the mark before it
(", " and '": "' are one piece) or stands alone. Copying, which most tasks need, is the same tokens again.
Digits are single. Called by `train`.
"""

import json
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from penstock.tiny.corpus import training_stream
from penstock.tiny.template import CHAT_TEMPLATE, END_OF_TEXT, IM_END, SPECIAL_TOKENS

VOCABULARY = 4096
_PIECES = r"\p{N}|[\p{L}\p{M}]+|(?:[^\s\p{L}\p{M}\p{N}]+ ?)+|\s"


def train_tokenizer(seed: int, conversations: int = 60_000) -> Tokenizer:
    """Merges learnt from `conversations` conversations; ids 0, 1, 2 are the special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    stream = islice(training_stream(seed), conversations)
    texts = (_without_special(piece) for conversation in stream for piece, _ in conversation.pieces)
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != VOCABULARY:
        raise ValueError(f"the text gave {tokenizer.get_vocab_size()} tokens instead of {VOCABULARY}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "bos_token": None,
        "eos_token": IM_END,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": list(SPECIAL_TOKENS),
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token, "lstrip": False, "normalized": False, "rstrip": False,
                "single_word": False, "special": True,
            }
            for token in SPECIAL_TOKENS
        },
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def _without_special(text: str) -> str:
    for token in SPECIAL_TOKENS:
        text = text.replace(token, "")
    return text
