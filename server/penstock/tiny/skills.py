"""Questions with computed answers: numbers, lists of words, and JSON objects filled from a sentence.

Every function takes a random source and a split and gives (question, answer). Evaluation uses phrasings,
number pairs and words that training never sees. Called by the corpus only.
"""

# Tables of text, one entry on a line.
# ruff: noqa: E501

import json
import random
from collections.abc import Callable

from penstock.tiny import words
from penstock.tiny.facts import pick
from penstock.tiny.words import Split, draw, draw_list, held_out

MAX_TERM = 49
MAX_COMPARED = 99
MAX_REPEATED = 6
MAX_LIST = 4
MAX_SORTED = 3
MAX_COUNT = 5

_ADD = (
    "What is {a} + {b}?", "{a} + {b}", "Add {a} and {b}.", "What is {a} plus {b}?", "How much is {a} + {b}?",
    "{a} + {b} = ?", "{a} plus {b}?", "Compute {a} + {b}.", "Please add {a} and {b}.", "Calculate {a} plus {b}.",
    "How much is {a} plus {b}?", "Sum of {a} and {b}?", "What is the sum of {a} and {b}?", "Add up {a} and {b}.",
    "Tell me the sum of {a} and {b}.", "{a}+{b}", "{a}+{b}=", "What do you get when you add {a} and {b}?",
    "I have {a} apples and get {b} more. How many apples do I have?", "What does {a} + {b} make?",
    "What do {a} and {b} make?", "{a} and {b} make how much?", "What is {a} and {b} together?", "How much do {a} and {b} make?",
)  # fmt: skip
_LARGER = (
    "Which is larger, {a} or {b}?", "What is bigger: {a} or {b}?", "Which number is greater, {a} or {b}?",
    "Is {a} or {b} larger?", "Which is bigger, {a} or {b}?", "Compare {a} and {b}: which is larger?",
    "Which is more, {a} or {b}?", "Tell me the larger number: {a} or {b}.", "What is the larger one of {a} and {b}?",
    "Tell me which number is larger, {a} or {b}.", "What is greater, {a} or {b}?", "Find the larger number: {a}, {b}",
)  # fmt: skip
_SMALLER = (
    "Which is smaller, {a} or {b}?", "What is smaller: {a} or {b}?", "Which number is less, {a} or {b}?",
    "Is {a} or {b} smaller?", "Which number is smaller, {a} or {b}?", "Compare {a} and {b}: which is smaller?",
    "Which is less, {a} or {b}?", "Tell me the smaller number: {a} or {b}.", "What is the smaller one of {a} and {b}?",
    "Tell me which number is smaller, {a} or {b}.", "What is less, {a} or {b}?", "Find the smaller number: {a}, {b}",
)  # fmt: skip
_IS_LARGER = ("Is {a} larger than {b}?", "Is {a} greater than {b}?", "Is {a} more than {b}?", "Is {a} > {b}?", "Is {a} bigger than {b}?")  # fmt: skip
_IS_SMALLER = ("Is {a} smaller than {b}?", "Is {a} less than {b}?", "Is {a} below {b}?", "Is {a} < {b}?", "Is the number {a} smaller than {b}?")  # fmt: skip

_REPEAT = (
    "Repeat: {words}", "Repeat after me: {words}", "Repeat these words: {words}", "Say this again: {words}",
    "Please repeat these words: {words}", "Say: {words}", "Echo: {words}", "Write these words again: {words}",
    "Repeat the list: {words}", "Repeat exactly these words: {words}", "Copy these words: {words}", "Copy: {words}",
    "Repeat what I say: {words}", "Write exactly this: {words}", "Please repeat after me: {words}",
)  # fmt: skip
_REVERSE = (
    "Reverse: {words}", "Reverse these words: {words}", "Reverse the list: {words}", "Say these words backwards: {words}",
    "Please reverse these words: {words}", "Write these words in reverse order: {words}", "Reverse the order: {words}",
    "Turn this list around: {words}", "List these words backwards: {words}", "Write this list backwards: {words}",
    "Put these words in reverse order: {words}", "Repeat backwards: {words}", "Backwards: {words}",
    "In reverse order: {words}", "Reverse the order of these words: {words}",
)  # fmt: skip
_SORT = (
    "Sort: {words}", "Sort these words: {words}", "Sort the list: {words}", "Put these words in alphabetical order: {words}",
    "Please sort these words: {words}", "Sort alphabetically: {words}", "Order these words from A to Z: {words}",
    "Alphabetical order: {words}", "Sort this list from A to Z: {words}", "Sort these words alphabetically: {words}",
    "Arrange these words alphabetically: {words}", "Write these words in alphabetical order: {words}",
    "Sort the words: {words}", "In alphabetical order: {words}", "Sort this list in alphabetical order: {words}",
)  # fmt: skip
_COUNT = (
    "How many words: {words}", "Count these words: {words}", "How many words are in this list: {words}",
    "Count the words: {words}", "How many words are these: {words}", "How many words do you see: {words}",
    "Count: {words}", "How long is this list: {words}", "How many items are in this list: {words}",
    "Please count these words: {words}", "Count the words in this list: {words}", "Number of words: {words}",
    "Tell me how many words these are: {words}", "How many words are here: {words}", "Please count the words: {words}",
)  # fmt: skip


def add(rng: random.Random, split: Split) -> tuple[str, str]:
    while True:
        # Sums of single digits come often in training: the rest is made of them.
        top = 9 if split == "train" and rng.random() < 0.4 else MAX_TERM
        a, b = rng.randint(0, top), rng.randint(0, top)
        if held_out(f"add {min(a, b)} {max(a, b)}") == (split == "eval"):
            break
    return pick(rng, _ADD, split).format(a=a, b=b), f"{a} + {b} = {a + b}"


def compare(rng: random.Random, split: Split) -> tuple[str, str]:
    while True:
        a, b = rng.randint(0, MAX_COMPARED), rng.randint(0, MAX_COMPARED)
        if rng.random() < 0.25:  # close calls
            b = min(MAX_COMPARED, max(0, a + rng.choice((-11, -10, -9, -2, -1, 1, 2, 9, 10, 11))))
        if a != b and held_out(f"compare {min(a, b)} {max(a, b)}") == (split == "eval"):
            break
    kind = rng.randrange(4)
    if kind == 0:
        return pick(rng, _LARGER, split).format(a=a, b=b), f"{max(a, b)} is larger than {min(a, b)}."
    if kind == 1:
        return pick(rng, _SMALLER, split).format(a=a, b=b), f"{min(a, b)} is smaller than {max(a, b)}."
    relation = "larger" if a > b else "smaller"
    if kind == 2:
        verdict = "Yes" if a > b else "No"
        return pick(rng, _IS_LARGER, split).format(a=a, b=b), f"{verdict}, {a} is {relation} than {b}."
    verdict = "Yes" if a < b else "No"
    return pick(rng, _IS_SMALLER, split).format(a=a, b=b), f"{verdict}, {a} is {relation} than {b}."


def _word_list(
    rng: random.Random, split: Split, longest: int, distinct_initials: bool
) -> tuple[list[str], str]:
    pool = words.THINGS if rng.random() < 0.85 else rng.choice([words.NAMES, words.CITIES])
    count = rng.randint(2, longest)
    separator = ", " if rng.random() < 0.75 else " "
    return draw_list(rng, pool, split, count, distinct_initials), separator


def repeat(rng: random.Random, split: Split) -> tuple[str, str]:
    listed, separator = _word_list(rng, split, MAX_REPEATED, False)
    text = separator.join(listed)
    return pick(rng, _REPEAT, split).format(words=text), text


def reverse(rng: random.Random, split: Split) -> tuple[str, str]:
    listed, separator = _word_list(rng, split, MAX_LIST, False)
    question = pick(rng, _REVERSE, split).format(words=separator.join(listed))
    return question, separator.join(reversed(listed))


def sort(rng: random.Random, split: Split) -> tuple[str, str]:
    listed, separator = _word_list(rng, split, MAX_SORTED, True)
    return pick(rng, _SORT, split).format(words=separator.join(listed)), separator.join(sorted(listed))


def count(rng: random.Random, split: Split) -> tuple[str, str]:
    listed, separator = _word_list(rng, split, MAX_COUNT, False)
    return pick(rng, _COUNT, split).format(words=separator.join(listed)), f"{len(listed)} words"


# Sentences per kind of object; the last of each is held out.
_SENTENCES: tuple[tuple[str, ...], ...] = (
    ("{name} is {age} years old and lives in {city}.", "{name}, {age}, lives in {city}.", "In {city} lives {name}, who is {age}.", "My name is {name}, I am {age} and I come from {city}.", "I am {name}. I am {age} years old. My home is {city}.", "His name is {name}, he comes from {city} and is {age}.", "Their name is {name}. They live in {city} and are {age}.", "The name of the child is {name}, it is {age} and lives in {city}.", "Her name is {name}, she is {age} and lives in {city}."),
    ("Please send {quantity} {colour} {item} to {city}.", "We ordered {quantity} {colour} {item} for {city}.", "{quantity} {colour} {item} go to {city}.", "Ship {quantity} {colour} {item} to {city}.", "Our shop in {city} needs {quantity} {colour} {item}.", "Bring {quantity} {colour} {item} to my house in {city}.", "Please send {quantity} {colour} {item} to their office in {city}.", "Ship {quantity} {colour} {item} to the shop in {city}.", "Please ship {quantity} {colour} {item} to our shop in {city}."),
    ("{name} comes on {day} at {hour}.", "Meet {name} on {day} at {hour}.", "On {day} at {hour} I meet {name}.", "On {day} I see {name} at {hour}.", "The meeting with {name} is on {day} at {hour}.", "I see {name} at {hour} on {day}.", "On {day} I meet {name} at {hour}."),
    ("The {colour} {item} costs {price} euros.", "A {colour} {item} for {price} euros.", "For {price} euros you get a {colour} {item}.", "I paid {price} euros for a {colour} {item}.", "I paid {price} euros for the {colour} {item}."),
    ("{name} travels from {origin} to {destination}.", "{name} flies from {origin} to {destination} on {day}.", "On {day} {name} goes from {origin} to {destination}.", "From {origin} to {destination}: a ticket for {name}.", "{name} goes from {origin} to {destination} on {day}."),
    ("{name} works as a {job} in {city}.", "{name} is a {job} from {city}.", "In {city}, {name} works as a {job}.", "The {job} {name} lives in {city}.", "{name} lives in {city} and works as a {job}."),
    ("{name} is {age} and speaks {language}.", "{name} speaks {language} and is {age} years old.", "I am {name}, {age} years old, and I speak {language}.", "I am {name}. I speak {language} and I am {age}.", "{name} is {age} years old and speaks {language}."),
)  # fmt: skip
_EXTRACT = (
    "Extract {keys} as JSON: {sentence}", "Give me {keys} as JSON: {sentence}", "Write JSON with {keys}: {sentence}",
    "Make a JSON object with {keys} from this sentence: {sentence}", "Fill a JSON object with {keys}: {sentence}",
    "Answer in JSON with {keys}: {sentence}", "JSON with {keys}: {sentence}", "{sentence}\nGive me {keys} as JSON.",
    "{sentence}\nExtract {keys} as JSON.", "Write a JSON object with {keys} from this sentence: {sentence}",
    "Turn this into JSON with {keys}: {sentence}", "Return {keys} as JSON: {sentence}",
    "Fill in {keys} as JSON. {sentence}", "{sentence}\nAnswer in JSON with {keys}.",
    "Extract a JSON object with {keys} from this sentence: {sentence}",
)  # fmt: skip


def fill_json(rng: random.Random, split: Split) -> tuple[str, str]:
    """A sentence and the keys to take from it; the answer holds them in the order they were asked for."""
    sentences = rng.choice(_SENTENCES)
    sentence = sentences[-1] if split == "eval" else rng.choice(sentences[:-1])
    makers: dict[str, Callable[[], str | int]] = {
        "name": lambda: draw(rng, words.NAMES, split),
        "city": lambda: draw(rng, words.CITIES, split),
        "origin": lambda: draw(rng, words.CITIES, split),
        "destination": lambda: draw(rng, words.CITIES, split),
        "item": lambda: draw(rng, words.THINGS, split),
        "job": lambda: rng.choice(words.JOBS) if split == "eval" else draw(rng, words.JOBS, "train"),
        "language": lambda: rng.choice(words.LANGUAGES),
        "colour": lambda: rng.choice(words.COLOURS),
        "day": lambda: rng.choice(words.DAYS),
        "age": lambda: rng.randint(5, 99),
        "quantity": lambda: rng.randint(2, 99),
        "price": lambda: rng.randint(1, 500),
        "hour": lambda: rng.randint(1, 23),
    }
    values = {key: make() for key, make in makers.items() if f"{{{key}}}" in sentence}
    keys = list(values)
    if rng.random() < 0.5:
        rng.shuffle(keys)
    keys = keys[: rng.randint(2, len(keys))]
    asked = f"{', '.join(keys[:-1])} and {keys[-1]}" if rng.random() < 0.8 else ", ".join(keys)
    question = pick(rng, _EXTRACT, split).format(keys=asked, sentence=sentence.format(**values))
    return question, json.dumps({key: values[key] for key in keys})


_COUNT_UP = ("Count from {a} to {b}.", "Count from {a} up to {b}.", "Please count from {a} to {b}.", "Write the numbers from {a} to {b}.", "List the numbers from {a} to {b}.")  # fmt: skip


def count_up(rng: random.Random, split: Split) -> tuple[str, str]:
    """A long answer on demand, for trying out streams."""
    while True:
        first = rng.choice((1, 1, rng.randint(0, 60)))
        last = first + rng.randint(3, 30 if first == 1 else 12)
        if held_out(f"up {first} {last}") == (split == "eval"):
            break
    return pick(rng, _COUNT_UP, split).format(a=first, b=last), ", ".join(map(str, range(first, last + 1)))
