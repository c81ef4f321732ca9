"""What a model's folder says of texts: tokenizer, chat template and end-of-sequence ids. Asked by the examination; the router, where its
program is at hand, says what is wrong with them.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from penstock.doctor.question import Question
from penstock.doctor.report import Report
from penstock.errors import UnusableModel
from penstock.hub.tokenizer import sources_of
from penstock.loading.model_files import GENERATION, eos_ids, read_json


def text(folder: Path, config: dict[str, Any], question: Question, report: Report) -> None:
    """Tokenizer, chat template and end-of-sequence ids."""
    unusable = prompt_files(folder, question)
    report.problems.extend(unusable)
    # A tokenizer that the router refuses may take all memory when it is built.
    for find in (chat_template,) if unusable else (tokenizer, chat_template):
        try:
            find(folder, config, report)
        except UnusableModel as error:
            report.problems.append(str(error))
    try:
        report.eos_token_ids = eos_ids(config, read_json(folder, GENERATION))
    except UnusableModel as error:
        report.problems.append(str(error))
        return
    if not report.eos_token_ids:
        report.warnings.append("no eos_token_id: answers end at a limit or a stop string only")


def prompt_files(folder: Path, question: Question) -> list[str]:
    """What the router says is wrong with tokenizer.json and the chat templates; one line each."""
    if question.launcher is None:
        return []
    command = [str(question.launcher), "prompt-files", str(folder)]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return [f"tokenizer.json and chat templates: could not be looked into: {error}"]
    lines: list[str] = json.loads(said)
    return lines


def tokenizer(folder: Path, config: dict[str, Any], report: Report) -> None:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.exists():
        older = sources_of(folder)
        if not older:
            report.missing_files.append(file.name)
            raise UnusableModel(f"{file.name}: missing, and so are the files that one can be made of")
        report.tokenizer = f"will be made of {older}"
        return
    report.tokenizer = file.name
    try:
        report.tokens = Tokenizer.from_file(str(file)).get_vocab_size()
    except Exception as error:  # the library has no narrower class
        raise UnusableModel(f"{file.name}: is not valid: {' '.join(str(error).split())[:200]}") from error
    vocabulary = config.get("vocab_size")
    if isinstance(vocabulary, int) and report.tokens > vocabulary:
        report.warnings.append(
            f"{file.name} has {report.tokens} tokens, and the model knows {vocabulary} (vocab_size)"
        )


def chat_template(folder: Path, config: dict[str, Any], report: Report) -> None:
    """Where the chat template is, in the order in which the router looks."""
    if (folder / "chat_template.jinja").is_file() or list(folder.glob("additional_chat_templates/*.jinja")):
        report.chat_template = "chat_template.jinja"
    elif (read_json(folder, "chat_template.json") or {}).get("chat_template"):
        report.chat_template = "chat_template.json"
    elif (read_json(folder, "tokenizer_config.json") or {}).get("chat_template"):
        report.chat_template = "tokenizer_config.json"
    else:
        report.warnings.append(
            "no chat template: chat requests are refused. A chat_template.jinja in the model's folder is one, and "
            "so is `chat_template` in the file of --tokenizer-config-path"
        )
