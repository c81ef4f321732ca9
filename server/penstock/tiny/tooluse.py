"""Tools, the questions that need them, and the answers made of their results. Called by the corpus only.

A `Family` is one kind of tool under several names, with parameters under several names, so that the model
has to read the definition it is given and cannot know the tool by heart. The last name and the last question
of each family are held out for evaluation, and so are words, names and cities (see `words`). Nearly all parts
of a held-out name occur in names that are not.
"""

# Tables of text, one entry on a line.
# ruff: noqa: E501

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from penstock.tiny import words
from penstock.tiny.template import Message, Tool
from penstock.tiny.words import Split

Value = str | int


@dataclass(frozen=True)
class Family:
    """`slots`: slot -> (kind of value, names of the parameter). `questions` and `answer` are patterns over the
    slots; `answer` also over the keys of `result` (key -> kind of value)."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    slots: dict[str, tuple[str, tuple[str, ...]]]
    questions: tuple[str, ...]
    result: dict[str, str]
    answer: str


_CITY = ("city", ("city", "location", "place"))

FAMILIES: tuple[Family, ...] = (
    Family(("get_weather", "weather", "current_weather", "check_weather", "weather_in_city", "fetch_forecast", "fetch_weather"), ("Get the weather in a city", "Current weather of a place", "Weather now"),
           {"c": _CITY}, ("What is the weather in {c}?", "How is the weather in {c}?", "Weather in {c}?", "Is it raining in {c}?", "Tell me the weather in {c}.", "Do I need an umbrella in {c}?", "What is the weather like in {c}?"),
           {"temperature": "degrees", "condition": "sky"}, "It is {condition} in {c}, {temperature} degrees."),
    Family(("get_time", "current_time", "local_time", "fetch_time", "time_now", "clock_in_city", "time_in_city"), ("Get the time in a city", "Local time of a place"),
           {"c": _CITY}, ("What time is it in {c}?", "Time in {c}?", "Tell me the time in {c}.", "How late is it in {c}?", "What is the time in {c}?"),
           {"time": "clock"}, "It is {time} in {c}."),
    Family(("get_population", "population", "count_people", "people_in_city", "city_size", "population_count", "city_population"), ("Number of people in a city", "Get the population of a city"),
           {"c": _CITY}, ("How many people live in {c}?", "Population of {c}?", "Tell me the population of {c}.", "How big is {c}?", "What is the population of {c}?"),
           {"population": "big"}, "{population} people live in {c}."),
    Family(("get_distance", "distance", "route_length", "distance_of_cities", "way_between", "route_distance", "distance_between"), ("Distance between two cities", "Get the distance from one place to another"),
           {"a": ("city", ("from", "origin", "start")), "b": ("city", ("to", "destination", "end"))},
           ("How far is it from {a} to {b}?", "Distance from {a} to {b}?", "How many kilometers from {a} to {b}?", "How long is the way from {a} to {b}?", "What is the distance from {a} to {b}?"),
           {"kilometers": "big"}, "It is {kilometers} kilometers from {a} to {b}."),
    Family(("book_flight", "reserve_flight", "buy_ticket", "flight", "flight_ticket", "book_seat", "flight_booking"), ("Book a flight between two cities", "Reserve a seat on a flight"),
           {"a": ("city", ("from", "origin", "start")), "b": ("city", ("to", "destination", "end"))},
           ("Book a flight from {a} to {b}.", "I want to fly from {a} to {b}.", "I need a flight from {a} to {b}.", "Get me a flight from {a} to {b}.", "Please book a flight from {a} to {b}."),
           {"flight": "code"}, "Your flight from {a} to {b} is booked: {flight}."),
    Family(("add", "sum", "add_numbers", "plus_numbers", "calculate_sum", "addition", "plus"), ("Add two numbers", "Sum of two numbers"),
           {"a": ("number", ("a", "x", "first")), "b": ("number", ("b", "y", "second"))},
           ("What is {a} plus {b}?", "Add {a} and {b}.", "How much is {a} + {b}?", "{a} + {b}?", "What is the sum of {a} and {b}?"),
           {"result": "big"}, "{a} + {b} = {result}"),
    Family(("multiply", "times", "product", "multiply_two", "product_of_numbers", "multiplication", "multiply_numbers"), ("Multiply two numbers", "Product of two numbers"),
           {"a": ("number", ("a", "x", "first")), "b": ("number", ("b", "y", "second"))},
           ("What is {a} times {b}?", "Multiply {a} and {b}.", "How much is {a} times {b}?", "Multiply {a} by {b}.", "What is the product of {a} and {b}?"),
           {"result": "big"}, "{a} times {b} is {result}."),
    Family(("convert_currency", "exchange", "convert_money", "currency", "money_converter", "exchange_currency", "currency_converter"), ("Convert money to another currency", "Exchange an amount of money"),
           {"n": ("number", ("amount", "value")), "a": ("currency", ("from", "source")), "b": ("currency", ("to", "target"))},
           ("Convert {n} {a} to {b}.", "How much is {n} {a} in {b}?", "What are {n} {a} in {b}?", "Change {n} {a} into {b}.", "Please convert {n} {a} to {b}."),
           {"amount": "number"}, "{n} {a} are {amount} {b}."),
    Family(("set_timer", "start_timer", "timer", "new_countdown", "minute_timer", "create_timer", "new_timer"), ("Start a timer", "Set a timer in minutes"),
           {"n": ("minutes", ("minutes", "duration", "length"))}, ("Set a timer for {n} minutes.", "Timer for {n} minutes.", "Start a timer of {n} minutes.", "Wake me in {n} minutes.", "Please set a timer for {n} minutes."),
           {"status": "ok"}, "The timer is set for {n} minutes."),
    Family(("set_alarm", "alarm", "create_alarm", "alarm_clock", "new_wakeup", "wake_up", "new_alarm"), ("Set an alarm for an hour", "Alarm at an hour of the day"),
           {"h": ("hour", ("hour", "time", "at"))}, ("Set an alarm for {h}.", "Wake me at {h}.", "Alarm at {h}.", "I have to get up at {h}.", "Please set an alarm for {h}."),
           {"status": "ok"}, "The alarm is set for {h}."),
    Family(("send_message", "send_text", "message", "text_person", "write_message", "message_to", "text_message"), ("Send a message to a person", "Send a text message"),
           {"p": ("name", ("to", "name", "recipient")), "t": ("phrase", ("text", "message", "body"))},
           ("Send a message to {p}: {t}", "Tell {p}: {t}", "Write to {p}: {t}", "Message to {p}: {t}", "Please send a message to {p}: {t}"),
           {"status": "ok"}, "The message to {p} is sent."),
    Family(("call_person", "phone", "call", "make_call", "phone_person", "start_call", "phone_call"), ("Call a person by phone", "Phone a contact"),
           {"p": ("name", ("name", "person", "contact"))}, ("Call {p}.", "Phone {p}.", "I want to talk to {p}.", "Give {p} a call.", "Please call {p}."),
           {"status": "ok"}, "I am calling {p}."),
    Family(("get_phone_number", "find_number", "lookup_contact", "phone_number", "contact_phone", "number_of_person", "contact_number"), ("Find the phone number of a person", "Phone number of a contact"),
           {"p": ("name", ("name", "person", "contact"))}, ("What is the phone number of {p}?", "Phone number of {p}?", "Find the number of {p}.", "How can I reach {p}?", "Tell me the phone number of {p}."),
           {"number": "big"}, "The number of {p} is {number}."),
    Family(("play_song", "play_music", "play", "music", "player_song", "start_song", "music_player"), ("Play a song", "Play music by title"),
           {"s": ("thing", ("title", "song", "name"))}, ("Play the song {s}.", "Play {s}.", "I want to hear {s}.", "Put on the song {s}.", "Please play the song {s}."),
           {"status": "ok"}, "Now playing {s}."),
    Family(("search_web", "web_search", "search", "internet", "find_pages", "search_pages", "internet_search"), ("Search the web", "Find pages on the internet"),
           {"q": ("phrase", ("query", "text", "q"))}, ("Search the web for {q}.", "Search for {q}.", "Look up {q} on the web.", "Find pages about {q}.", "Please search the web for {q}."),
           {"pages": "big"}, "I found {pages} pages about {q}."),
    Family(("translate", "translate_text", "translation", "translate_word", "word_translator", "to_language", "translator"), ("Translate a word into a language", "Translate text"),
           {"t": ("thing", ("text", "word", "phrase")), "l": ("language", ("language", "to", "target"))},
           ("Translate {t} into {l}.", "What is {t} in {l}?", "How do you say {t} in {l}?", "Translate the word {t} to {l}.", "Please translate {t} into {l}."),
           {"translation": "foreign"}, "In {l}, {t} is {translation}."),
    Family(("define_word", "dictionary", "define", "word_definition", "meaning", "explain_word", "word_meaning"), ("Meaning of a word", "Look a word up in the dictionary"),
           {"w": ("thing", ("word", "term"))}, ("What does the word {w} mean?", "Define {w}.", "Meaning of {w}?", "Look up the word {w}.", "What is the meaning of the word {w}?"),
           {"meaning": "phrase"}, "{w} means: {meaning}"),
    Family(("get_price", "price", "product_price", "item_price", "price_of_product", "cost", "price_of_item"), ("Price of an item", "Get the price of a product"),
           {"i": ("thing", ("item", "product", "article"))}, ("What does the {i} cost?", "Price of the {i}?", "How much is the {i}?", "How expensive is the {i}?", "What is the price of the {i}?"),
           {"price": "number"}, "The {i} costs {price} euros."),
    Family(("get_stock", "check_stock", "stock", "item_stock", "items_left", "stock_of_item", "items_in_stock"), ("How many of an item are in stock", "Check the stock of an item"),
           {"i": ("thing", ("item", "product", "article"))}, ("How many {i} are in stock?", "Do we have {i} in stock?", "Stock of {i}?", "Check the stock of {i}.", "How many {i} do we have in stock?"),
           {"count": "number"}, "There are {count} of {i} in stock."),
    Family(("order_item", "buy", "place_order", "buy_product", "order_goods", "purchase", "order_product"), ("Order a number of items", "Place an order"),
           {"n": ("number", ("quantity", "count", "amount")), "i": ("thing", ("item", "product", "article"))},
           ("Order {n} {i}.", "Buy {n} {i}.", "I want to buy {n} {i}.", "I need {n} {i}. Order them.", "Please order {n} {i}."),
           {"order": "big"}, "{n} {i} are ordered. The order number is {order}."),
    Family(("order_status", "get_order", "track_order", "status", "order_tracking", "status_of_parcel", "status_of_order"), ("Status of an order", "Where an order is"),
           {"n": ("big", ("order", "number", "id"))}, ("Where is my order {n}?", "What is the status of order {n}?", "Track order {n}.", "Status of order {n}?", "When does my order {n} arrive?", "Tell me the status of order {n}."),
           {"status": "shipping"}, "Your order {n} is {status}."),
    Family(("light_on", "turn_on_light", "switch_light_on", "lamp", "switch_lamp", "room_light_on", "lamp_on"), ("Turn on the light in a room", "Switch the light on"),
           {"r": ("room", ("room", "place", "where"))}, ("Turn on the light in the {r}.", "Light on in the {r}.", "Switch on the {r} light.", "It is dark in the {r}.", "Please turn on the light in the {r}."),
           {"status": "ok"}, "The light in the {r} is on."),
    Family(("set_temperature", "heat_room", "thermostat", "room_heat", "heating", "set_degrees", "room_temperature"), ("Set the temperature of a room", "Heat a room"),
           {"r": ("room", ("room", "place", "where")), "n": ("degrees", ("degrees", "temperature", "celsius"))},
           ("Set the {r} to {n} degrees.", "Heat the {r} to {n} degrees.", "I want {n} degrees in the {r}.", "Make it {n} degrees in the {r}.", "Please set the {r} to {n} degrees."),
           {"status": "ok"}, "The {r} is set to {n} degrees."),
    Family(("create_event", "add_event", "calendar_add", "event", "new_appointment", "calendar_event", "new_event"), ("Add an event to the calendar", "Create a calendar event"),
           {"t": ("thing", ("title", "event", "name")), "d": ("day", ("day", "date", "when"))},
           ("Add {t} to my calendar on {d}.", "Put {t} in my calendar for {d}.", "Plan {t} on {d}.", "On {d} I have {t}. Put it in the calendar.", "Please add {t} to my calendar on {d}."),
           {"status": "ok"}, "{t} is in your calendar on {d}."),
    Family(("list_events", "calendar", "get_events", "events", "day_plan", "list_calendar", "events_of_day"), ("Events of a day", "List what is in the calendar"),
           {"d": ("day", ("day", "date", "when"))}, ("What do I have on {d}?", "What is in my calendar on {d}?", "Show me {d}.", "My plans for {d}?", "Tell me what I have on {d}."),
           {"event": "thing", "hour": "hour"}, "On {d} you have {event} at {hour}."),
    Family(("book_table", "reserve_table", "restaurant_booking", "table", "restaurant_table", "table_booking", "table_reservation"), ("Book a table in a restaurant", "Reserve a table"),
           {"n": ("people", ("people", "guests", "seats")), "d": ("day", ("day", "date", "when"))},
           ("Book a table for {n} on {d}.", "I need a table for {n} people on {d}.", "Reserve a table on {d} for {n}.", "A table for {n} on {d}.", "Please book a table for {n} people on {d}."),
           {"code": "code"}, "Your table for {n} on {d} is booked: {code}."),
    Family(("find_recipe", "recipe", "get_recipe", "recipe_finder", "search_recipe", "cook_dish", "recipe_search"), ("Find a recipe", "Recipe with an ingredient"),
           {"f": ("thing", ("dish", "ingredient", "food"))}, ("Find a recipe with {f}.", "How do I cook {f}?", "Recipe for {f}?", "I want to cook {f}.", "Please find a recipe with {f}."),
           {"recipe": "phrase", "minutes": "minutes"}, "Try {recipe}. It takes {minutes} minutes."),
    Family(("get_news", "news", "latest_news", "headlines", "news_search", "topic_news", "news_headlines"), ("News about a topic", "Get the latest news"),
           {"t": ("thing", ("topic", "subject", "about"))}, ("What is the news about {t}?", "News about {t}?", "Any news on {t}?", "Show me news about {t}.", "Tell me the news about {t}."),
           {"headline": "phrase"}, "The news about {t}: {headline}"),
    Family(("open_app", "start_app", "launch_app", "run_program", "app", "start_program", "run_app"), ("Open an app", "Start a program"),
           {"a": ("thing", ("app", "name", "program"))}, ("Open the app {a}.", "Start the app {a}.", "Launch {a}.", "I want to use the app {a}.", "Please open the app {a}."),
           {"status": "ok"}, "The app {a} is open."),
    Family(("roll_dice", "dice", "roll", "throw_die", "dice_roll", "roll_die", "throw_dice"), ("Roll a die", "Roll a die with some sides"),
           {"n": ("people", ("sides", "max", "faces"))}, ("Roll a die with {n} sides.", "Roll a {n}-sided die.", "Throw a die with {n} sides.", "Dice with {n} sides, please.", "Please roll a die with {n} sides."),
           {"result": "people"}, "The die shows {result}."),
    Family(("delete_file", "remove_file", "erase_file", "file_remove", "delete", "trash_file", "file_delete"), ("Delete a file", "Remove a file by name"),
           {"f": ("file", ("name", "file", "path"))}, ("Delete the file {f}.", "Remove {f}.", "Erase {f}.", "I no longer need the file {f}. Delete it.", "Please delete the file {f}."),
           {"status": "ok"}, "The file {f} is deleted."),
    Family(("read_file", "open_file", "show_file", "file_text", "content", "read_text_file", "file_content"), ("Read a file", "Show the content of a file"),
           {"f": ("file", ("name", "file", "path"))}, ("Read the file {f}.", "What is in {f}?", "Show me {f}.", "Show the content of {f}.", "Please read the file {f}."),
           {"content": "phrase"}, "The file {f} says: {content}"),
)  # fmt: skip

_INTEGERS = {
    "number": (1, 999), "big": (100, 99999), "minutes": (1, 90), "hour": (0, 23), "degrees": (5, 35), "people": (2, 20),
}  # fmt: skip
_TYPES = {kind: "integer" for kind in _INTEGERS}
_POOLS = {
    "currency": ["euros", "dollars", "pounds", "yen", "francs", "pesos"],
    "language": words.LANGUAGES, "room": words.ROOMS, "day": words.DAYS,
    "sky": ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy"],
    "ok": ["ok", "done"], "shipping": ["shipped", "delivered", "delayed", "on the way", "packed"],
}  # fmt: skip


def _phrase(rng: random.Random, split: Split) -> str:
    return " ".join(draw_words(rng, split, rng.randint(2, 4)))


def draw_words(rng: random.Random, split: Split, count: int) -> list[str]:
    return words.draw_list(rng, words.THINGS, split, count, False)


_MAKERS: dict[str, Callable[[random.Random, Split], Value]] = {
    "city": lambda rng, split: words.draw(rng, words.CITIES, split),
    "name": lambda rng, split: words.draw(rng, words.NAMES, split),
    "thing": lambda rng, split: words.draw(rng, words.THINGS, split),
    "phrase": _phrase,
    "foreign": lambda rng, split: words.invented(rng, split),
    "clock": lambda rng, split: f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}",
    "code": lambda rng, split: (
        f"{rng.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{rng.choice('ABCDEFGHKLMNPRSTUVWXYZ')}{rng.randint(100, 999)}"
    ),
    "file": lambda rng, split: (
        f"{words.draw(rng, words.THINGS, split)}.{rng.choice(('txt', 'md', 'csv', 'json', 'py'))}"
    ),
}


def _value(rng: random.Random, kind: str, split: Split) -> Value:
    if kind in _INTEGERS:
        return rng.randint(*_INTEGERS[kind])
    if kind in _POOLS:
        return rng.choice(_POOLS[kind])
    return _MAKERS[kind](rng, split)


@dataclass(frozen=True)
class Use:
    """One question, the definition of the tool it needs, the call, and what follows from a result."""

    tool: Tool
    question: str
    arguments: dict[str, Value]
    result: str
    answer: str


_HELD_OUT_NAMES = frozenset(family.names[-1] for family in FAMILIES)
_NAME_PARTS = sorted({part for family in FAMILIES for name in family.names[:-1] for part in name.split("_")})


def _tool_name(rng: random.Random, family: Family, split: Split) -> str:
    """Evaluation: half of the time the held-out one. Training: now and then one that says nothing about the
    tool, so that names are copied from the definition and not known by heart. Seldom, because a model of this
    size learns which name goes with a question, and never to look for the description beside the name."""
    if split == "eval":
        return family.names[-1] if rng.random() < 0.5 else rng.choice(family.names[:-1])
    if rng.random() < 0.1:
        parts = [
            rng.choice(_NAME_PARTS) if rng.random() < 0.8 else words.draw(rng, words.THINGS, split)
            for _ in range(rng.choice((1, 2, 2, 3)))
        ]
        if "_".join(parts) not in _HELD_OUT_NAMES:
            return "_".join(parts)
    return rng.choice(family.names[:-1])


def use(rng: random.Random, family: Family, split: Split) -> Use:
    name = _tool_name(rng, family, split)
    values = {slot: _value(rng, kind, split) for slot, (kind, _) in family.slots.items()}
    parameters = {slot: rng.choice(names) for slot, (_, names) in family.slots.items()}
    properties = {}
    for slot, (kind, _) in family.slots.items():
        properties[parameters[slot]] = {"type": _TYPES.get(kind, "string")}
    tool: Tool = {
        "name": name,
        "description": rng.choice(family.descriptions),
        "parameters": {"type": "object", "properties": properties, "required": list(properties)},
    }
    if rng.random() < 0.2:  # clients and servers that sort keys
        tool = json.loads(json.dumps(tool, sort_keys=True))
    asked = {parameters[slot]: value for slot, value in values.items()}
    shown = tool["parameters"]["properties"]
    question = family.questions[-1] if split == "eval" else rng.choice(family.questions[:-1])
    result = {key: _value(rng, kind, split) for key, kind in family.result.items()}
    order = list(result)
    rng.shuffle(order)
    answer = family.answer.format(**{**values, **result})
    return Use(
        tool,
        question.format(**values),
        {name: asked[name] for name in shown},
        json.dumps({key: result[key] for key in order}),
        answer[0].upper() + answer[1:],
    )


def call_message(used: Use) -> Message:
    """The assistant's turn that calls the tool."""
    function = {"name": used.tool["name"], "arguments": used.arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def two_tools(rng: random.Random, split: Split) -> tuple[Use, list[Tool]]:
    """A use of one tool, and the list of two in which it stands. The other one is of another family and has
    another name."""
    wanted, other = rng.sample(FAMILIES, 2)
    used, distractor = use(rng, wanted, split), use(rng, other, split)
    tools = [used.tool, distractor.tool]
    rng.shuffle(tools)
    return used, tools
