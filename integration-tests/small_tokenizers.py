# ruff: noqa: RUF001 (texts that only look like others are the point)
"""Small tokenizers of every kind, trained on the spot, in model folders as they are published: with a
tokenizer.json, or with the older files only. Beside them stands a model that repeats its prompt, so that they can
be served.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from checkpoints import repeating_llama

FAST: Any = PreTrainedTokenizerFast  # has no types

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and again!",
    "Grüße aus München; ça va très bien, señor?",
    "漢字とかなを混ぜた文章です。 你好世界。",
    "Привет, мир! שלום עולם مرحبا بالعالم",
    "def f(x):\n\treturn {'a': 1, \"b\": [2.5, None]}  # 100%",
    "👩‍👩‍👧‍👦 😀 🏳️‍🌈 e\u0301 naïve café №1 ½ ﬁ",
    "it's we're they'll 1234567890 3.14159 http://a.b/c?d=e&f",
]


def corpus() -> Iterator[str]:
    """Sentences, and words of random letters, so that there is something to learn."""
    chance = random.Random(0)
    for number in range(600):
        yield SENTENCES[number % len(SENTENCES)]
        words = ("".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 7))) for _ in range(8))
        yield f"{' '.join(words)} {number}"


def sentencepiece_model(file: Path, size: int = 500, **options: Any) -> None:
    with open(file, "wb") as out:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=corpus(),
            model_writer=out,
            vocab_size=size,
            minloglevel=2,
            num_threads=1,
            **options,
        )


def config(folder: Path, **fields: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))


def llama2(folder: Path, *, legacy: bool) -> None:
    """SentencePiece BPE with byte fallback; tokenizer.model only."""
    sentencepiece_model(
        folder / "tokenizer.model",
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.98,
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config(folder, tokenizer_class="LlamaTokenizer", add_bos_token=True, legacy=legacy, **names)


def t5(folder: Path) -> None:
    """Unigram without byte fallback; spiece.model only."""
    sentencepiece_model(
        folder / "spiece.model",
        model_type="unigram",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        character_coverage=0.98,
    )
    config(
        folder,
        tokenizer_class="T5Tokenizer",
        extra_ids=10,
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
    )


def xlm_roberta(folder: Path) -> None:
    """Unigram whose ids are shifted; sentencepiece.bpe.model only."""
    sentencepiece_model(folder / "sentencepiece.bpe.model", model_type="unigram", character_coverage=0.98)
    config(folder, tokenizer_class="XLMRobertaTokenizer")


def byte_level(folder: Path, split: pre_tokenizers.PreTokenizer, **template: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**template))
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def gpt2(folder: Path) -> None:
    """Byte-level BPE; vocab.json and merges.txt only."""
    tokenizer = byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    vocabulary = tokenizer.get_vocab()
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    lines = ["#version: 0.2", *(" ".join(pair) for pair in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    config(
        folder,
        tokenizer_class="GPT2Tokenizer",
        eos_token="<|endoftext|>",
        bos_token="<|endoftext|>",
        unk_token="<|endoftext|>",
    )


# Words with one character before them, digits in threes, line ends, blanks.
LLAMA3_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def llama3(folder: Path) -> None:
    """Byte-level BPE with an expression of its own for words; tokenizer.json."""
    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer = byte_level(folder, split, ignore_merges=True)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>"])
    begin = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)]
    )
    fast: Any = FAST(
        tokenizer_object=tokenizer,
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)


def unigram_bytes(folder: Path) -> None:
    """Unigram with byte fallback; tokenizer.json."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.UnigramTrainer(
        vocab_size=700, special_tokens=tokens, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(("".join(c for c in line if c < "\u0250") for line in corpus()), trainer)
    made = json.loads(tokenizer.to_str())
    made["model"]["byte_fallback"] = True
    made["added_tokens"] = [token for token in made["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast: Any = FAST(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.save_pretrained(folder)


def bert(folder: Path) -> None:
    """WordPiece; vocab.txt only."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(
        corpus(), trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    )
    names = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{name}\n" for name, _ in names))
    config(folder, tokenizer_class="BertTokenizer", do_lower_case=True)


def added(folder: Path) -> None:
    """Byte-level BPE with a normalizer and added tokens of every manner; tokenizer.json."""
    tokenizer = byte_level(folder, pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.add_special_tokens(
        [AddedToken("<END>", special=True), AddedToken("<left>", lstrip=True, special=True)]
    )
    tokenizer.add_tokens(
        [
            AddedToken("<right>", rstrip=True),
            AddedToken("word", single_word=True),
            AddedToken("Ünder score", normalized=True),
            AddedToken("As Is", normalized=False),
            AddedToken("naïve", normalized=False),
            AddedToken("   ", normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True),
        ]
    )
    fast: Any = FAST(tokenizer_object=tokenizer, eos_token="<END>", clean_up_tokenization_spaces=False)
    fast.save_pretrained(folder)


KINDS: dict[str, Callable[[Path], None]] = {
    "gpt2": gpt2,
    "llama3": llama3,
    "llama2": lambda folder: llama2(folder, legacy=False),
    "llama2 legacy": lambda folder: llama2(folder, legacy=True),
    "t5": t5,
    "xlm-roberta": xlm_roberta,
    "unigram bytes": unigram_bytes,
    "bert": bert,
    "added": added,
}


# So many tokens back is the one that comes next.
PERIOD = 48


def model(folder: Path, kind: str) -> Path:
    """A model that repeats, with the tokenizer of this kind and its files only."""
    folder.mkdir(parents=True)
    KINDS[kind](folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    special = tokenizer.all_special_ids
    return repeating_llama(folder, period=PERIOD, vocabulary=len(tokenizer), special=special)
