# ruff: noqa: RUF001 (letters that look like others are in the expressions and tokens of models)
"""tokenizer.json, tokenizer_config.json and generation_config.json of a GGUF file's `tokenizer.*`. Must not import torch.

What is read: byte-level BPE (`gpt2`), Gemma 4's (`gemma4`), and SentencePiece's BPE (`llama`), whose merges are found again from the scores of its pieces: the pair that makes the piece with the
higher score is merged first. Fields and kinds of tokens: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's llama-vocab.cpp.
"""

from dataclasses import dataclass
from typing import Any

from penstock.errors import UnusableModel
from penstock.gguf.container import Header
from penstock.gguf.pretokenizers import BEGIN, IGNORE_MERGES, STEPS

Json = dict[str, Any]

UNKNOWN, CONTROL, USER_DEFINED, BYTE = 2, 3, 4, 6
NO_TOKEN = 0xFFFFFFFF
"""In place of a token's number."""
SPACE = "▁"
# Behind which llama.cpp ends an answer whatever the file says, by their text.
ENDS = frozenset(
    (
        *("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>"),
        *("<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>", "<end_of_utterance>"),
        *("<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
    )
)  # fmt: skip
# Where a model has all of one of these, what it calls an end is one of a part of its answer (GPT-OSS, Solar Open).
OTHER_ENDS = (frozenset(("<|return|>", "<|call|>")), frozenset(("<|calls|>", "<|flush|>")))
ENDS_OF_PARTS = frozenset(("<|end|>",))
# Models by `general.name`, which is all that llama.cpp has to know them by, whose special tokens take the spaces behind them, and which of them do not.
STRIP_SPACE, KEEP_SPACE = ("phi-3", "phi3"), frozenset(("<unk>", "<s>", "<|endoftext|>"))
WAY_OUT = "put the model's tokenizer.json beside the file"
KNOWN_MODELS = ("gpt2", "llama", "gemma4")


@dataclass(frozen=True)
class Made:
    """The files, by their names."""

    tokenizer: Json
    config: Json
    ends: list[int]
    """Tokens behind which an answer is over."""


def make(header: Header) -> Made:
    """Raises UnusableModel, naming the field."""
    return _Tokenizer(header.metadata).made()


def config_of(header: Header) -> tuple[Json, list[int]]:
    """tokenizer_config.json, and the tokens behind which an answer is over, where the tokenizer itself is another file's."""
    found = _Tokenizer(header.metadata)
    return found.config(), found.ends()


class _Tokenizer:
    def __init__(self, metadata: Json) -> None:
        self._metadata = metadata
        self._model = metadata.get("tokenizer.ggml.model")
        self._tokens = self._list("tokens", str)
        kinds = (
            self._list("token_type", int)
            if self._value("token_type") is not None
            else [1] * len(self._tokens)
        )
        if len(kinds) != len(self._tokens):
            raise self._wrong("token_type", f"has {len(kinds)} entries for {len(self._tokens)} tokens")
        self._kinds = kinds
        pre = self._value("pre")
        self._pre = pre if isinstance(pre, str) else ""

    def made(self) -> Made:
        if self._model not in KNOWN_MODELS:
            raise self._wrong(
                "model", f"is {str(self._model)[:40]!r}, and {' and '.join(KNOWN_MODELS)} are read; {WAY_OUT}"
            )
        whole = self._of_bytes() if self._model == "gpt2" else self._of_pieces()
        return Made(
            {"version": "1.0", "truncation": None, "padding": None, **whole}, self.config(), self.ends()
        )

    # What both have.

    def _of_bytes(self) -> Json:
        steps = STEPS.get(self._pre)
        if steps is None:
            raise self._wrong(
                "pre", f"is {self._pre[:40]!r}, and how that cuts words is not known; {WAY_OUT}"
            )
        vocabulary = self._vocabulary(self._tokens)
        merges = self._merges(vocabulary)
        return {
            "added_tokens": self._added(self._tokens),
            "normalizer": None,
            "pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps},
            "post_processor": self._processor(
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
            ),
            "decoder": {
                "type": "ByteLevel",
                "add_prefix_space": True,
                "trim_offsets": True,
                "use_regex": True,
            },
            "model": {
                **_bpe(vocabulary, merges),
                "ignore_merges": self._pre in IGNORE_MERGES,
            },
        }

    def _of_pieces(self) -> Json:
        # llama.cpp has spaces in tokens of users as they are. Runs of them are pieces to merge; others are found in a text before it is normalized.
        texts = [
            text.replace(" ", SPACE) if kind == USER_DEFINED and not text.strip(" ") else text
            for text, kind in zip(self._tokens, self._kinds, strict=True)
        ]
        vocabulary = self._vocabulary(texts)
        unknown = next((at for at, kind in enumerate(self._kinds) if kind == UNKNOWN), self._id("unknown"))
        has_prefix = self._flag("add_space_prefix", self._model == "llama")
        spaces: Json = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        prefix: Json = {"type": "Prepend", "prepend": SPACE}
        decoders: list[Json] = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        if has_prefix:
            decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        return {
            "added_tokens": [one for one in self._added(texts) if one["content"].strip(SPACE + " ")],
            "normalizer": {"type": "Sequence", "normalizers": [prefix, spaces]} if has_prefix else spaces,
            "pre_tokenizer": None,
            "post_processor": self._processor(None),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                **_bpe(vocabulary, self._merges_of_pieces(texts, vocabulary)),
                "unk_token": None if unknown is None else texts[unknown],
                "fuse_unk": True,
                "byte_fallback": BYTE in self._kinds,
                "ignore_merges": False,
            },
        }

    def _merges(self, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
        """As the file has them."""
        merges = [self._pair(at, merge) for at, merge in enumerate(self._list("merges", str))]
        for left, right in merges:
            for part in (left, right, left + right):
                if part not in vocabulary:
                    raise self._wrong("merges", f"has {left} {right}, and {part!r} is no token")
        return merges

    def _merges_of_pieces(self, texts: list[str], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
        """Of pieces, where the file has none: pairs that are a piece, those of higher scores first."""
        if self._model == "gemma4":
            return self._merges(vocabulary)
        scores = self._list("scores", float)
        if len(scores) != len(self._tokens):
            raise self._wrong("scores", f"has {len(scores)} entries for {len(self._tokens)} tokens")
        found: list[tuple[float, int, int, str, str]] = []
        for text, score, kind in zip(texts, scores, self._kinds, strict=True):
            if kind not in (1, USER_DEFINED) or len(text) < 2:
                continue
            for cut in range(1, len(text)):
                left, right = vocabulary.get(text[:cut]), vocabulary.get(text[cut:])
                if left is not None and right is not None:
                    found.append((-score, left, right, text[:cut], text[cut:]))
        found.sort()
        return [(left, right) for _, _, _, left, right in found]

    def _vocabulary(self, texts: list[str]) -> dict[str, int]:
        made = {text: at for at, text in enumerate(texts)}
        if len(made) < len(texts):
            first: dict[str, int] = {}
            twice = next(text for at, text in enumerate(texts) if first.setdefault(text, at) != at)
            raise self._wrong("tokens", f"has {twice[:40]!r} twice")
        return made

    def _added(self, texts: list[str]) -> list[Json]:
        """Tokens that are found in a text before all else."""
        name = str(self._metadata.get("general.name")).lower()
        strips = any(one in name for one in STRIP_SPACE)
        return [
            {
                "id": at,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and text not in KEEP_SPACE,
                "normalized": False,
                "special": kind != USER_DEFINED,
            }
            for at, (text, kind) in enumerate(zip(texts, self._kinds, strict=True))
            if kind in (UNKNOWN, CONTROL, USER_DEFINED) and text
        ]

    def _processor(self, first: Json | None) -> Json | None:
        """Puts what a text begins and ends with around it."""
        begin = self._id("bos") if self._begins() else None
        end = self._id("eos") if self._flag("add_eos_token", False) else None
        if begin is None and end is None:
            return first

        def around(which: str, kind: int) -> list[Json]:
            made: list[Json] = [{"Sequence": {"id": which, "type_id": kind}}]
            if begin is not None:
                made.insert(0, {"SpecialToken": {"id": self._tokens[begin], "type_id": kind}})
            if end is not None:
                made.append({"SpecialToken": {"id": self._tokens[end], "type_id": kind}})
            return made

        template: Json = {
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": [*around("A", 0), *around("B", 1)],
            "special_tokens": {
                self._tokens[at]: {"id": self._tokens[at], "ids": [at], "tokens": [self._tokens[at]]}
                for at in (begin, end)
                if at is not None
            },
        }
        return template if first is None else {"type": "Sequence", "processors": [first, template]}

    def config(self) -> Json:
        """tokenizer_config.json."""
        made: Json = {
            "add_bos_token": self._begins(),
            "add_eos_token": self._flag("add_eos_token", False),
            "clean_up_tokenization_spaces": False,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }
        for field, name in (
            ("bos", "bos_token"),
            ("eos", "eos_token"),
            ("unknown", "unk_token"),
            ("padding", "pad_token"),
        ):
            at = self._id(field)
            if at is not None:
                made[name] = self._tokens[at]
        templates = {
            name.removeprefix("tokenizer.chat_template").removeprefix("."): text
            for name, text in self._metadata.items()
            if name.startswith("tokenizer.chat_template") and isinstance(text, str)
        }
        if templates.keys() == {""}:
            made["chat_template"] = templates[""]
        elif templates:
            made["chat_template"] = [
                {"name": name or "default", "template": text} for name, text in templates.items()
            ]
        return made

    def ends(self) -> list[int]:
        """Tokens behind which an answer is over."""
        found = {at for at in map(self._id, ("eos", "eot", "eom")) if at is not None}
        in_parts = any(one.issubset(self._tokens) for one in OTHER_ENDS)
        ends = ENDS - ENDS_OF_PARTS if in_parts else ENDS
        found.update(
            at
            for at, text in enumerate(self._tokens)
            if self._kinds[at] in (CONTROL, USER_DEFINED) and text in ends
        )
        return sorted(found)

    def _begins(self) -> bool:
        """Whether texts begin with the token of their begin."""
        # Files of Gemma 4 say that theirs do not, and are wrong: https://github.com/ggml-org/llama.cpp/pull/21500
        said = self._flag("add_bos_token", self._model == "llama" or self._pre in BEGIN)
        return (said or self._model == "gemma4") and self._id("bos") is not None

    # Fields.

    def _value(self, name: str) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def _list(self, name: str, kind: type) -> list[Any]:
        value = self._value(name)
        if not isinstance(value, list) or not value or not isinstance(value[0], kind):
            raise self._wrong(
                name,
                "is missing or no list; " + WAY_OUT
                if value is None
                else "is not a list of what it holds elsewhere",
            )
        return value

    def _flag(self, name: str, default: bool) -> bool:
        value = self._value(name)
        return value if isinstance(value, bool) else default

    def _id(self, name: str) -> int | None:
        """A token that the file names; None: it names none."""
        value = self._value(f"{name}_token_id")
        if value is None or value == NO_TOKEN:
            return None
        if type(value) is not int or not 0 <= value < len(self._tokens):
            raise self._wrong(
                f"{name}_token_id", f"is {str(value)[:40]}, and there are {len(self._tokens)} tokens"
            )
        return value

    def _pair(self, at: int, merge: str) -> tuple[str, str]:
        # A space stands between both, and may stand for no byte in either.
        left, space, right = merge.partition(" ")
        if not (left and space and right) or " " in right:
            raise self._wrong("merges", f"has {merge[:40]!r} at {at}, which is no pair")
        return left, right

    def _wrong(self, name: str, why: str) -> UnusableModel:
        return UnusableModel(f"tokenizer.ggml.{name} {why}")


def _bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocabulary,
        "merges": [list(pair) for pair in merges],
    }
