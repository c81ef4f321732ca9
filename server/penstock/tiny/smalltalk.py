"""Greetings, and what the tiny model says when it does not know. Called by the corpus only.

The questions it cannot answer come from patterns times topics, both with held-out parts, so that the model
learns "anything else" and not a list.
"""

# Tables of text, one entry on a line.
# ruff: noqa: E501, SIM905

import random

from penstock.tiny import words
from penstock.tiny.facts import pick
from penstock.tiny.words import Split, held_out

UNKNOWN = (
    "I do not know. I am only the tiny model that ships with Penstock. "
    "To serve a real one, run: penstock --model-id <model>"
)

GREETINGS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello", "Hi", "Hello!", "Hey", "Hi!", "Good morning", "Hey!", "Hello there", "Good evening", "Hi there", "Good morning!", "Hello Penstock", "Hi there!", "Good day", "Hello there!", "Hey there", "Good afternoon", "Hello again", "Greetings", "Good morning Penstock", "Hi Penstock", "Hello, Penstock!", "Good evening!"),
     "Hello! I am the tiny model that ships with Penstock. Ask me about Penstock."),
    (("Thanks", "Thank you", "Thanks!", "Thank you!", "Thank you so much", "Thanks a lot", "Great, thanks", "Thank you very much", "Perfect, thank you", "Thanks a lot!", "Many thanks", "Thanks for the help", "Nice, thanks", "Thanks so much", "Thank you a lot", "Very good, thank you", "Ok, thanks", "Thank you for your help"),
     "You are welcome!"),
    (("Bye", "Goodbye", "See you", "Bye!", "Goodbye!", "Good night", "See you later", "Bye bye", "See you tomorrow", "Good night!", "See you soon", "Goodbye Penstock", "Bye for now", "See you then", "Until tomorrow", "Ok, bye", "Have a nice day", "Good night, Penstock"),
     "Goodbye!"),
    (("How are you?", "How are you doing?", "How is it going?", "Are you well?", "How are you today?", "How do you do?", "Are you fine?", "How are things?", "Everything fine?", "Hello, how are you?", "Hi, how are you?", "Hey, how are you?", "How are you this morning?", "Good morning, how are you?", "How are you now?", "Hi, how are you today?", "And how are you?", "How are you this evening?", "How have you been today?", "Hello, how are you doing?", "How is your day today?", "Hello, how is it going?"),
     "I am fine, thank you. I am a tiny model, so small things make me happy."),
)  # fmt: skip

_TOPICS = """
France Germany Brazil Japan Rome China history football tennis chess music physics chemistry biology geography politics
money love life death time space Mars Jupiter gravity electricity atoms dinosaurs Shakespeare Goethe Mozart Einstein
Newton Napoleon Caesar Cleopatra Picasso Beethoven Bach Darwin Python JavaScript Linux Windows Android bitcoin taxes law
medicine cancer vitamins coffee chocolate cooking baking gardening fishing hiking swimming yoga sleep dreams
philosophy religion Buddhism poetry cinema theatre painting sculpture architecture bridges cars trains planes ships
robots computers software databases networks internet security cryptography compilers algorithms statistics algebra
geometry calculus probability weather climate volcanoes earthquakes oceans rivers mountains forests deserts animals
insects birds fish horses elephants bacteria viruses Europe Africa Asia America Australia Russia Spain Italy Greece
Egypt India Mexico Canada Sweden Norway
""".split()

_PATTERNS = (
    "What is the capital of {x}?", "Tell me about {x}.", "Who invented {x}?", "Write a poem about {x}.",
    "What do you think of {x}?",
    "Explain {x}.", "What is {x}?", "Who was {x}?", "When did {x} begin?", "Where is {x}?",
    "Write a story about {x}.", "How does {x} work?", "Tell me a joke about {x}.", "Why is {x} important?",
    "Describe {x}.",
    "Translate {x} into French.", "Who is the president of {x}?", "What is the best book about {x}?",
    "How old is {x}?", "How do I learn {x}?",
    "Give me advice about {x}.", "What is the history of {x}?", "Is {x} good or bad?", "How many people live in {x}?",
    "Who is {x}?",
    "Write an essay about {x}.", "Summarize {x}.", "What happened in {x}?", "What is the population of {x}?",
    "What is the meaning of {x}?",
    "Do you like {x}?", "Which {x} is the best?", "Write a program about {x}.", "Can you help me with {x}?",
    "Write a letter about {x}.",
    "What is the price of {x}?", "How far is it to {x}?", "What is {a} times {b}?", "What is {a} minus {b}?",
    "Multiply {a} by {b}.",
    "What is {a} divided by {b}?", "What is {a}00 + {b}00?", "Write a Python function for {x}.", "{x}?", "Sing a song about {x}.",
    "What is the weather in {x}?", "What time is it?", "What day is today?", "What is the news today?",
    "Which language do they speak in {x}?",
    "Spell {x}.", "What rhymes with {x}?", "What colour is {x}?", "Where can I buy {x}?",
    "What is the difference between {x} and {y}?",
    "{x}", "{x} {y}", "{x} or {y}?", "What do {x} and {y} have in common?", "Compare {x} with {y}.",
    "I am sad.", "I feel lonely today.", "I love {x}.", "Yesterday I saw {x}.", "My friend {x} is ill.",
    "What should I eat today?", "Tell me a joke.", "Tell me a story.", "Sing a song.", "Write a poem.",
    "What is the meaning of life?", "Who won the world cup?", "How do I cook {x}?", "Can {x} fly?", "Draw a picture of {x}.",
    "Where does {x} come from?", "How tall is {x}?", "How much does {x} cost?", "Give me ten facts about {x}.",
    "How do I get from {x} to {y}?",
)  # fmt: skip


def greet(rng: random.Random, split: Split) -> tuple[str, str]:
    questions, answer = rng.choice(GREETINGS)
    return pick(rng, questions, split), answer


def unknown(rng: random.Random, split: Split) -> tuple[str, str]:
    """A question outside of what the model can do."""
    pattern = pick(rng, _PATTERNS, split)
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    return pattern.format(x=_topic(rng, split), y=_topic(rng, split), a=a, b=b), UNKNOWN


def _topic(rng: random.Random, split: Split) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice([topic for topic in _TOPICS if held_out(topic, 5) == (split == "eval")])
    if kind < 0.8:
        pool = rng.choice((words.THINGS, words.THINGS, words.CITIES, words.NAMES))
        return words.draw(rng, pool, split)
    if split == "eval":
        return words.draw(rng, words.THINGS, split)
    return " ".join(words.invented(rng, split) for _ in range(rng.choice((1, 1, 2, 3))))
