"""Brings a model or an adapter from the hub to this machine: `python -m penstock.download owner/name`.

Run by the launcher, before any worker, and by whoever only fetches. With `--for-this-machine`, which the launcher passes, the doctor looks
before a large download at what can be known of the model without it. Writes JSON lines to standard output: log lines with `level` and `message`, and as the last one
`{"snapshot": {"folder", "commit", "pipeline_tag"}}`, whose last member is null where the hub was not asked or names no task, or `{"failed": one line for the user}`.
Of a repository that is an adapter and no model it brings that, and the last line is `{"adapter": {"folder", "commit"}}`: who serves it needs its base model.
Of a model in GGUF files it is `{"gguf": {"file", "commit", "pipeline_tag"}}`, the first of them. Must not import torch, unless there is
something large to fetch.
"""

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from penstock.hub import client, gguf_files
from penstock.hub.cache import cache_folder
from penstock.hub.request import AdapterAlone, GgufAlone, Request, Unavailable, write


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.download",
        description="Downloads what Penstock needs of a model or an adapter on the hub.",
    )
    parser.add_argument("repo", help="owner/name")
    parser.add_argument("--revision", help="branch, tag or commit [default: main]")
    parser.add_argument("--cache-dir", type=Path, help="[default: as HF_HUB_CACHE and HF_HOME say]")
    parser.add_argument("--progress-bar", action="store_true", help="draw a bar on standard error")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="fetch pickled weights and code, too"
    )
    parser.add_argument(
        "--without-weights",
        action="store_true",
        help="only what goes before and after the model's computation",
    )
    parser.add_argument("--gguf", metavar="TAG_OR_FILE", help="which of its models in GGUF files")
    parser.add_argument("--adapter", action="store_true", help="it is a LoRA adapter, and no model")
    parser.add_argument(
        "--for-this-machine", action="store_true", help="fetch nothing large that would not be served here"
    )
    parser.add_argument("--num-shard", type=int, default=1, help="what the doctor is asked about then, like")
    parser.add_argument("--pipeline-parallel", type=int, default=1, help="this,")
    parser.add_argument("--model-impl", default="auto", help="what runs the model,")
    parser.add_argument("--dtype", default="auto", help="the dtype that will be served,")
    parser.add_argument("--quantize", default="", help="how weights are quantized while they are loaded,")
    parser.add_argument("--quantize-head", action="store_true", help="the head as well, and")
    parser.add_argument("--kv-cache-dtype", default="auto", help="how the KV cache holds numbers,")
    parser.add_argument("--device", default="auto", help="the device,")
    parser.add_argument("--deterministic", action="store_true", help="whether batches may not matter,")
    parser.add_argument(
        "--meets-elsewhere", action="store_true", help="whether shards meet at --master-addr,"
    )
    parser.add_argument("--memory-fraction", type=float, default=0.9, help="the memory that may be taken,")
    parser.add_argument("--max-total-tokens", type=int, help="the longest sequence,")
    parser.add_argument("--max-batch-size", type=int, help="sequences of a step, and")
    parser.add_argument("--max-batch-prefill-tokens", type=int, help="its tokens")
    arguments = parser.parse_args()
    if arguments.adapter and arguments.without_weights:
        parser.error("--without-weights is for models")
    request = Request(
        arguments.repo,
        arguments.revision,
        cache_folder(arguments.cache_dir, arguments.repo),
        arguments.progress_bar,
        arguments.trust_remote_code,
        not arguments.without_weights,
        arguments.adapter,
        gguf=arguments.gguf,
    )
    client.keep_xet_in(request.cache)
    client.keep_libraries_quiet()
    pipeline_tag: str | None = None

    def bring(request: Request) -> Path:
        nonlocal pipeline_tag
        begun = client.begin(request)
        pipeline_tag = begun.listing.pipeline_tag
        # Else another machine serves it, or this one when others have left: a builder of images, an init container.
        is_examined = arguments.for_this_machine and not arguments.adapter
        examine = partial(_problems, arguments) if is_examined and not request.adapter else None
        return client.complete(request, begun, examine)

    try:
        try:
            folder = client.obtain(request, bring)
        except GgufAlone:
            request = replace(request, gguf="")
            folder = client.obtain(request, bring)
        except AdapterAlone:
            folder = client.obtain(replace(request, adapter=True, merged=True), bring)
            write(adapter={"folder": str(folder), "commit": folder.name})
            return 0
    except Unavailable as failure:
        write(failed=str(failure))
        return 1
    if request.gguf is not None:
        names = [str(file.relative_to(folder)) for file in folder.rglob("*.gguf")]
        file = folder / gguf_files.choose(names, request.gguf, request.called)[0]
        write(gguf={"file": str(file), "commit": folder.name, "pipeline_tag": pipeline_tag})
        return 0
    write(snapshot={"folder": str(folder), "commit": folder.name, "pipeline_tag": pipeline_tag})
    return 0


def _problems(arguments: argparse.Namespace, folder: Path) -> list[str]:
    """What the doctor has against serving the folder."""
    from penstock.doctor.examination import examine
    from penstock.doctor.question import SLOTS, Question

    question = Question(
        shards=arguments.num_shard,
        dtype=arguments.dtype,
        device=arguments.device,
        memory_fraction=arguments.memory_fraction,
        trusted=arguments.trust_remote_code,
        stages=arguments.pipeline_parallel,
        implementation=arguments.model_impl,
        longest=arguments.max_total_tokens,
        slots=arguments.max_batch_size or SLOTS,
        step_tokens=arguments.max_batch_prefill_tokens,
        quantize=arguments.quantize,
        quantize_head=arguments.quantize_head,
        cache_dtype=arguments.kv_cache_dtype,
        deterministic=arguments.deterministic,
        meets_elsewhere=arguments.meets_elsewhere,
    )
    return examine(folder, question).problems


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # No thread of a library is worth waiting for.
    os._exit(status)
