"""Conversations for training and items for evaluation, from the tasks in the modules beside this one.

`training_stream` gives conversations without end, `evaluation_items` a fixed list per task. Both are seeded.
What a user says in an evaluation item is never said in training: the tasks are built that way, and
`training_stream` asserts it. Called by `train`, `tokenizer` and `evaluate`.
"""

# Tables of text, one entry on a line.
# ruff: noqa: E501

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.tiny import facts, skills, smalltalk, tooluse
from penstock.tiny.template import END_OF_TEXT, Message, Tool, segments, turn_text
from penstock.tiny.words import Split

Task = Callable[[random.Random, Split], tuple[str, str]]

TALK: dict[str, Task] = {
    "penstock": facts.ask,
    "add": skills.add,
    "compare": skills.compare,
    "repeat": skills.repeat,
    "reverse": skills.reverse,
    "sort": skills.sort,
    "count": skills.count,
    "fill_json": skills.fill_json,
    "unknown": smalltalk.unknown,
    "greet": smalltalk.greet,
    "count_up": skills.count_up,
}
TASKS = (*TALK, "call_tool", "tool_result")

# Shares of the first exchange of a conversation.
WEIGHTS = {
    "penstock": 17.0, "add": 9.0, "compare": 6.0, "repeat": 6.0, "reverse": 11.0, "sort": 15.0, "count": 5.0,
    "fill_json": 10.0, "unknown": 6.0, "greet": 4.0, "count_up": 1.5, "call_tool": 20.0, "tool_result": 5.0,
}  # fmt: skip
# The same at the start of the training: much repeating, because all tasks but "penstock" need the model to
# find earlier tokens again, and short prompts, because that is learnt from many of them.
EARLY_WEIGHTS = {
    "penstock": 17.0, "add": 6.0, "compare": 4.0, "repeat": 25.0, "reverse": 8.0, "sort": 6.0, "count": 3.0,
    "fill_json": 10.0, "unknown": 5.0, "greet": 1.0, "count_up": 1.0,
}  # fmt: skip
# And later: less of what is learnt already.
LATE_WEIGHTS = WEIGHTS | {"unknown": 4.0, "repeat": 4.0}
# In the end, what is still hard.
LAST_WEIGHTS = {
    "penstock": 13.0, "add": 17.0, "compare": 14.0, "repeat": 9.0, "reverse": 9.0, "sort": 18.0, "count": 11.0,
    "fill_json": 16.0, "unknown": 5.0, "greet": 5.0, "count_up": 4.0, "call_tool": 30.0, "tool_result": 8.0,
}  # fmt: skip

# And last, what takes the longest.
FINAL_WEIGHTS = LAST_WEIGHTS | {"greet": 10.0, "call_tool": 60.0, "tool_result": 12.0}

_SYSTEMS = (
    "You are a helpful assistant.", "You are the tiny model of Penstock.", "Answer briefly.", "Be polite.",
    "You are an assistant.", "You are a helpful assistant. Be brief.", "Help the user.", "Answer the question.",
    "You are a friendly robot.", "You are a careful assistant.", "You are Penstock.", "Be helpful.",
    "Keep your answers short.", "You help people who use Penstock.", "You are a helpful and friendly assistant.",
)  # fmt: skip
_OPENERS = (
    "Please tell me: ",
    "Hello! ",
    "Hi, ",
    "A question: ",
    "Hey, ",
    "Now: ",
    "Next: ",
    "Good morning! ",
    "One more: ",
)


@dataclass(frozen=True)
class Conversation:
    """Training text as pieces; True marks what the model learns to write."""

    task: str
    pieces: list[tuple[str, bool]]


@dataclass(frozen=True)
class Item:
    """One evaluation prompt and the only answer that counts."""

    task: str
    messages: list[Message]
    answer: str
    tools: list[Tool] = field(default_factory=list)


def training_stream(
    seed: int, forbidden: frozenset[str] | None = None, weights: dict[str, float] = WEIGHTS
) -> Iterator[Conversation]:
    """Conversations without end. `forbidden` are the user turns of the evaluation; meeting one is an error."""
    rng = random.Random(seed)
    banned = user_turns(evaluation_items()) if forbidden is None else forbidden
    names, shares = list(weights), list(weights.values())
    while True:
        task = rng.choices(names, shares)[0]
        if task in TALK and rng.random() < 0.08:
            yield _raw(rng, task, banned)
            continue
        messages, tools = _exchange(rng, task, "train")
        if (
            task not in TALK and rng.random() < 0.25
        ):  # the tools stand there, but first something else is said
            messages = _talk(rng, rng.choice(list(TALK)), "train") + messages
        while rng.random() < 0.2 and len(messages) < 8:
            more = rng.choices(names, shares)[0]
            if more in TALK:
                messages += _talk(rng, more, "train")
            elif tools and more == "call_tool":  # the tools of this conversation again
                messages += _talk(rng, rng.choice(list(TALK)), "train")
        if rng.random() < 0.3:
            messages.insert(0, {"role": "system", "content": facts.pick(rng, _SYSTEMS, "train")})
        for message in messages:
            assert message["role"] != "user" or message["content"] not in banned, message["content"]
        yield Conversation(task, segments(messages, tools))


def evaluation_items(per_task: int = 150, seed: int = 7) -> list[Item]:
    """`per_task` different items for each task. A third of them have a system turn (also a held-out one),
    a sixth come after another exchange."""
    rng = random.Random(seed)
    items: list[Item] = []
    for task in TASKS:
        seen: set[str] = set()
        for _ in range(per_task * 40):  # a task with few held-out items gives fewer
            messages, tools = _exchange(rng, task, "eval")
            key = repr((messages[:-1], tools))
            if len(seen) == per_task:
                break
            if key in seen:
                continue
            seen.add(key)
            prompt, answer = messages[:-1], messages[-1]
            if rng.random() < 1 / 6:
                prompt = _talk(rng, rng.choice(list(TALK)), "eval") + prompt
            if rng.random() < 1 / 3:
                prompt.insert(0, {"role": "system", "content": facts.pick(rng, _SYSTEMS, "eval")})
            items.append(Item(task, prompt, turn_text(answer), tools))
    return items


def user_turns(items: list[Item]) -> frozenset[str]:
    """Everything a user says in the evaluation."""
    return frozenset(m["content"] for item in items for m in item.messages if m["role"] == "user")


def _exchange(rng: random.Random, task: str, split: Split) -> tuple[list[Message], list[Tool]]:
    if task in TALK:
        # In training, tools sometimes stand there although the question does not need them.
        tools = tooluse.two_tools(rng, split)[1] if split == "train" and rng.random() < 0.04 else []
        return _talk(rng, task, split), tools
    used, tools = tooluse.two_tools(rng, split)
    if split == "train" and rng.random() < 0.15:
        tools = [used.tool]
    messages: list[Message] = [{"role": "user", "content": used.question}, tooluse.call_message(used)]
    if task == "tool_result" or (split == "train" and rng.random() < 0.3):
        messages.append({"role": "tool", "content": used.result})
        messages.append({"role": "assistant", "content": used.answer})
    return messages, tools


def _talk(rng: random.Random, task: str, split: Split) -> list[Message]:
    question, answer = TALK[task](rng, split)
    if split == "train" and task != "greet":  # a greeting without its mark may be another, held-out one
        question = _casual(rng, question, task)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _casual(rng: random.Random, question: str, task: str) -> str:
    """People leave out capitals and marks, and say hello first."""
    kind = rng.random()
    if kind < 0.08:
        question = question[0].lower() + question[1:]
    if kind < 0.12 and question[-1] in "?.!" and task != "repeat":
        question = question[:-1]
    if 0.12 < kind < 0.17:
        question = rng.choice(_OPENERS) + question
    return question


def _raw(rng: random.Random, task: str, banned: frozenset[str]) -> Conversation:
    """A bare text as /generate gets it, with no chat template around: the answer follows on a new line."""
    question, answer = TALK[task](rng, "train")
    assert question not in banned, question
    if rng.random() < 0.25:
        return Conversation(
            task, [(f"Question: {question}\nAnswer:", False), (f" {answer}{END_OF_TEXT}", True)]
        )
    return Conversation(task, [(question, False), (f"\n{answer}{END_OF_TEXT}", True)])
