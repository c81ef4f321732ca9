"""Says what would become of a model on this machine: `python -m penstock.doctor --model-id X [--json]`.

Run by `penstock doctor`. Finds the model's files, on the hub if need be, and has them examined. docs/doctor.md says
what the JSON holds.
"""

import argparse
import io
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path

from penstock import tiny
from penstock.doctor.examination import examine
from penstock.doctor.question import Question
from penstock.doctor.report import Report, as_json, as_text
from penstock.errors import UnusableModel
from penstock.gguf import unpack
from penstock.hub import client, gguf_files
from penstock.hub.cache import cache_folder, snapshot_of_revision
from penstock.hub.outline import outline
from penstock.hub.request import Begun, Request, Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.doctor", description="Says what would become of a model on this machine."
    )
    parser.add_argument(
        "--model-id", help="a folder, or owner/name on the hub [default: the model that ships]"
    )
    parser.add_argument("--revision", help="branch, tag or commit [default: main]")
    parser.add_argument("--speculate-model", help="a smaller model that makes drafts, named in the same way")
    parser.add_argument("--speculate-model-revision", help="branch, tag or commit [default: main]")
    parser.add_argument(
        "--lora-adapters",
        action="append",
        default=[],
        metavar="NAME=FOLDER",
        help="an adapter beside the model; a name alone is of one on the hub, which is not fetched",
    )
    parser.add_argument(
        "--cache-dir", type=Path, help="of downloads [default: as HF_HUB_CACHE and HF_HOME say]"
    )
    parser.add_argument("--folder", type=Path, help="the model's files, instead of a download")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--num-shard", type=int, default=1)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    parser.add_argument("--model-impl", default="auto")
    parser.add_argument("--memory-fraction", type=float, default=0.9)
    parser.add_argument("--quantize", default="")
    parser.add_argument("--quantize-head", action="store_true")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--meets-elsewhere", action="store_true", help="shards meet at --master-addr")
    parser.add_argument("--launcher", type=Path, help="the program `penstock`, to read chat templates with")
    parser.add_argument("--program", action="store_true", help="each operation that the CPU engine would run")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    question = Question(
        shards=arguments.num_shard,
        dtype=arguments.dtype,
        device=arguments.device,
        memory_fraction=arguments.memory_fraction,
        trusted=arguments.trust_remote_code,
        stages=arguments.pipeline_parallel,
        implementation=arguments.model_impl,
        launcher=arguments.launcher,
        quantize=arguments.quantize,
        quantize_head=arguments.quantize_head,
        cache_dtype=arguments.kv_cache_dtype,
        program=arguments.program,
        deterministic=arguments.deterministic,
        meets_elsewhere=arguments.meets_elsewhere,
        adapters=tuple(arguments.lora_adapters),
    )
    report = look_at(arguments, question)
    print(json.dumps(as_json(report)) if arguments.json else as_text(report), flush=True)
    return 0 if report.would_serve else 1


def look_at(arguments: argparse.Namespace, question: Question) -> Report:
    """Finds the files of the model, and of the one that makes drafts for it, on the hub if need be, and examines them."""
    named, drafts = arguments.model_id, arguments.speculate_model
    with tempfile.TemporaryDirectory() as into:
        try:
            given = arguments.folder or (Path(named) if named else tiny.MODEL)
            found = find(given, named, arguments.revision, arguments, Path(into) / "model")
            if drafts:
                revision = arguments.speculate_model_revision
                try:
                    draft = find(Path(drafts), drafts, revision, arguments, Path(into) / "draft")
                except Unavailable as error:
                    raise Unavailable(f"--speculate-model: {error}") from error
                question = replace(question, draft=draft.files)
        except Unavailable as error:
            return Report(
                model=named or "the model that ships",
                num_shard=question.shards,
                pipeline_parallel=question.stages,
                problems=[str(error)],
            )
        report = examine(found.files, question)
    report.model, report.folder, report.commit = (
        named or "the model that ships",
        str(found.folder),
        found.commit,
    )
    report.draft_model = drafts
    report.warnings += found.warnings
    if found.pickled_bytes is not None:
        report.weight_bytes = found.pickled_bytes
    return report


@dataclass(frozen=True)
class Found:
    """A model's files, of one on the hub all but the weights themselves."""

    files: Path
    folder: Path  # where they are, or would be once downloaded
    commit: str | None = None
    warnings: tuple[str, ...] = ()
    pickled_bytes: int | None = None


def find(
    folder: Path, named: str | None, revision: str | None, arguments: argparse.Namespace, into: Path
) -> Found:
    """The files in `folder`, or else those of a model on the hub. Raises Unavailable."""
    if folder.is_dir():
        names = os.listdir(folder)
        if gguf_files.is_made(names) or not gguf_files.are_alone(names):
            return Found(folder, folder)
    assert named is not None, "the model that ships is a folder"
    if folder.exists() or gguf_files.of_hub(named):
        return _of_gguf(folder, named, revision, arguments)
    cache = cache_folder(arguments.cache_dir, named)
    request = Request(named, revision, cache, trusted=arguments.trust_remote_code)
    client.keep_xet_in(cache)
    client.keep_libraries_quiet()
    said = io.StringIO()  # lines for the launcher
    begun: Begun | None = None

    def bring(request: Request) -> Path:
        nonlocal begun
        begun = client.begin(request)
        into.mkdir()
        outline(request, begun, into)
        return into

    with redirect_stdout(said):
        files = client.obtain(request, bring)
    at = files if begun is None else begun.folder
    lines = [json.loads(line) for line in said.getvalue().splitlines()]
    warnings = tuple(line["message"] for line in lines if line.get("level") == "WARN")
    pickled = None
    if begun is not None and begun.pickled:
        pickled = sum(begun.listing.sizes[name] for name in begun.weights)
    return Found(files, at, at.name, warnings, pickled)


def _of_gguf(folder: Path, named: str, revision: str | None, arguments: argparse.Namespace) -> Found:
    """What is made of GGUF files that are here. Raises Unavailable."""
    commit = None
    if folder.is_file():
        file = folder
    elif folder.is_dir():
        file = folder / gguf_files.only(os.listdir(folder), str(folder))
    else:
        repo, which = gguf_files.of_hub(named) or (named, "")
        cache = cache_folder(arguments.cache_dir, repo)
        kept = snapshot_of_revision(Request(repo, revision, cache, gguf=which))
        held = [] if kept is None else [str(one.relative_to(kept)) for one in kept.rglob("*.gguf")]
        if kept is None or not gguf_files.models(held):
            raise Unavailable(
                f"GGUF files are looked at once they are here, and the cache {cache} has none of {repo}"
            )
        file, commit = kept / gguf_files.choose(held, which, repo)[0], kept.name
    try:
        with redirect_stdout(io.StringIO()):  # lines for the launcher
            return Found(unpack.obtain(file.absolute(), arguments.cache_dir), file, commit)
    except UnusableModel as error:
        raise Unavailable(str(error)) from error
    except OSError as error:
        raise Unavailable(f"{file}: {error}") from error


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # No thread of a library is worth waiting for.
    os._exit(status)
