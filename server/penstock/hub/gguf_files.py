"""Which of a repository's GGUF files are a model. Used by the download and by what looks into its cache. Must not import torch."""

import re
from collections.abc import Collection

from penstock.gguf.container import PART
from penstock.hub.request import Unavailable
from penstock.loading.model_files import CONFIG, GGUF, GGUF_PART, INDEX, PICKLE, PICKLE_INDEX, SINGLE, listed

# What a file says of how its numbers are stored, at the end of its name or of its folder's.
TAG = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|BF16|FP?16|FP?32|MXFP4\w*|NVFP4))(?=[-./]|$)", re.IGNORECASE
)
# Beside models: what reads images, what llama-quantize reads, and what makes drafts.
NO_MODEL = re.compile(
    r"(.*[/._-])?(mmproj|imatrix)([/._-].*)?|(.*/)?(mtp|eagle3|dflash|dspark)-.*", re.IGNORECASE
)
LATEST = "latest"  # as Ollama calls the usual one
# Where nothing is asked for: llama.cpp's choice, and then what loses little.
USUAL = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0")


def models(names: Collection[str]) -> dict[str, list[str]]:
    """Of each model its files in their order, by the name of the first one without its number."""
    found: dict[str, list[str]] = {}
    for name in sorted(names):
        if not name.endswith(".gguf") or NO_MODEL.fullmatch(name.removesuffix(".gguf")):
            continue
        part = PART.fullmatch(name)
        model = f"{part['name']}-of-{part['count']}" if part else name.removesuffix(".gguf")
        found.setdefault(model, []).append(name)
    return found


def are_alone(names: Collection[str]) -> bool:
    """Whether these are the files of models in GGUF, and none of others."""
    return bool(models(names)) and not {SINGLE, INDEX, PICKLE, PICKLE_INDEX}.intersection(names)


def tag_of(model: str) -> str:
    """What a model's name says of its numbers; of one that says nothing its name."""
    found = TAG.findall(model)
    if found:
        return str(found[-1])
    return model.rpartition("/")[2]


def choose(names: Collection[str], wanted: str, called: str) -> list[str]:
    """The files of one model. `wanted`: a tag (Q4_K_M), a file's name, or nothing; `called`: the repository, in errors. Raises Unavailable."""
    every = models(names)
    wanted = "" if wanted.lower() == LATEST else wanted
    if not every:
        raise Unavailable(f"{called} has no model in GGUF files")
    for model, files in every.items():
        if wanted in files or wanted == model:
            return _whole(files, called)
    tags = {model: tag_of(model) for model in every}
    for tag in (wanted,) if wanted else USUAL:
        fitting = [
            model
            for model in every
            if tags[model].upper().removeprefix("UD-") == tag.upper().removeprefix("UD-")
        ]
        same = [model for model in fitting if tags[model].upper() == tag.upper()]
        if same or fitting:
            return _whole(every[min(same or fitting, key=len)], called)
    if wanted:
        raise Unavailable(
            f"{called} has no GGUF file {wanted}, only {listed(sorted(set(tags.values())), 30)}"
        )
    return _whole(every[min(every)], called)


def is_made(names: Collection[str]) -> bool:
    """Whether these are the files of a folder that was made of a GGUF file; the launcher's rule."""
    return CONFIG in names and any(name == GGUF or GGUF_PART.fullmatch(name) for name in names)


def only(names: Collection[str], called: str) -> str:
    """The first file of the one model that there is. Raises Unavailable."""
    every = models(names)
    if len(every) != 1:
        raise Unavailable(
            f"{called} has {len(every)} models in GGUF files ({listed(sorted(every), 10)}): name the file of one"
        )
    return next(iter(every.values()))[0]


def of_hub(name: str) -> tuple[str, str] | None:
    """The repository and the tag or the file of a name on the hub that has one; the launcher's rule."""
    for begin in ("hf.co/", "huggingface.co/"):
        name = name.removeprefix(begin)
    repo, colon, which = name.partition(":")
    if not colon and name.endswith(".gguf") and name.count("/") >= 2:
        owner, model, which = name.split("/", 2)
        repo = f"{owner}/{model}"
    return (repo, which) if which and "/" in repo else None


def _whole(files: list[str], called: str) -> list[str]:
    part = PART.fullmatch(files[0])
    if part is None:
        return files
    wanted = [f"{part['name']}-{at:05}-of-{part['count']}.gguf" for at in range(1, int(part["count"]) + 1)]
    absent = [name for name in wanted if name not in files]
    if absent:
        raise Unavailable(f"{called} has not all parts of {part['name']}: no {listed(absent, 3)}")
    return wanted
