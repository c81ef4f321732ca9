"""The closed vocabulary of the word tasks, and which part of it training never sees.

The tasks draw words, names, cities and invented words from here. A word is in training or held out, never
both, and the choice depends on the word alone, so that every process agrees on it.
"""

# Tables of text, one entry on a line.
# ruff: noqa: E501, SIM905

import random
import zlib
from typing import Literal

Split = Literal["train", "eval"]


def held_out(key: str, share: int = 8) -> bool:
    """Whether `key` belongs to evaluation: one in `share`, by a hash that is the same everywhere."""
    return zlib.crc32(key.encode()) % share == 0


THINGS = """
acorn actor air album alley almond amber anchor angel ant anvil apple apron arch arm arrow art ash atlas attic aunt
autumn axe baby badge bag baker ball balloon bamboo banana band bank barn barrel basil basket bat bath beach bead beam
bean bear beard beaver bed bee beech beet beetle bell belt bench berry bike bird biscuit blanket block blossom board
boat bolt bone book boot bottle bow bowl box boy branch brass bread brick bridge broom brother brush bubble bucket bud
bull bun bus bush butter button cabin cabbage cable cactus cake calf camel camera camp canal candle candy cane canoe
canvas cap cape car card cargo carpet carrot cart castle cat cave cedar celery cellar cello chain chair chalk cheese
cherry chess chest chicken child chimney chin church cider cinema circle circus city clam clay cliff cloak clock cloth
cloud clover club coach coal coast coat cobra coconut coffee coin collar comb comet cook copper coral cord cork corn
corner cotton couch cousin cow crab cradle crane crayon cream creek cricket crop crow crown crystal cube cup curtain
cushion dad daisy dance date dawn day deer desert desk dessert diamond diary dice dime dinner dish diver dock doctor dog
doll dolphin donkey door dove dragon drawer dream dress drill drum duck dune dust eagle ear earth east echo eel egg
elbow elephant elk elm emerald engine envelope evening eye fabric face factory fairy falcon farm farmer father feast
feather fence fern ferry festival field fig finch finger fire fish flag flame flask flower flute fly foam fog forest
fork fort fountain fox frame friend frog frost fruit funnel garage garden garlic gate gem giant ginger giraffe girl
glacier glass globe glove glue goat gold goose grape grass gravel green grove guest guitar gulf hail hair hall ham hammer
hammock hand harbor hare harp hat hawk hay hazel heart hedge heel helmet hen herb heron hill hinge hive hockey holly
home honey hood hook hoop horn horse hotel hour house hut ice inch ink iris iron island ivory ivy jacket jade jam jar
jaw jelly jewel judge jug juice jungle kettle key king kite kitten knee knife knot ladder lady lake lamb lamp lane
lantern laurel lava lawn leaf leather lemon lens letter lettuce lily lime linen lion lip lizard lobster lock log lotus
lunch lynx magnet maple marble market mask mast match meadow meal melon metal milk mill mint mirror mole money monkey
moon moose moss moth mother motor mountain mouse mouth mud mug museum mushroom music nail napkin neck needle nest net
night noodle north nose note novel nurse nut oak oar oasis oat ocean office oil olive onion opal orange orchard orchid
otter oven owl ox oyster paddle page paint palace palm pan panda paper parade park parrot party pasta path pea peach
peacock peanut pear pearl pebble pen pencil penguin pepper petal phone photo piano picnic pie pig pigeon pillow pilot
pin pine pipe pirate pitcher pizza planet plant plate plum pocket poem poet pond pony pool poppy porch port potato
powder prince prune puddle pump pumpkin puppet puppy purse puzzle quail quarry quartz queen quilt rabbit raccoon radio
radish raft rain raisin ranch raven ribbon rice ring river road robin robot rock rocket roof room rope rose ruby rug
ruler saddle sail sailor salad salmon salt sand sauce saw scarf school scissors scooter sea seal seed shark sheep shelf
shell shield ship shirt shoe shop shovel shrimp sign silk silver sister skate sketch ski skirt sky sled sleeve snail
snake snow soap sock sofa soil soldier song soup south spark sparrow spear spice spider spinach spoon spring spruce
square squid squirrel stable stage stair stamp star station statue steam steel stem stew stick stone stool store storm
stove straw stream street string sugar suit summer sun swan sweater swing sword table tail tailor tea teacher tent
theater thorn thread throne thumb thunder ticket tiger tile toad toast toe tomato tool tooth torch tower town toy
track tractor train tray tree trout truck trumpet tulip tunnel turkey turnip turtle twig umbrella uncle valley van vase
vest village vine violet violin voice volcano wagon waist wall walnut walrus water wave wax weasel west whale wheat
wheel whistle willow wind window wine wing winter wolf wood wool worm wreath wrist yacht yard yarn yogurt zebra zinc
""".split()

NAMES = """
Ada Adam Agnes Ahmed Aisha Alan Alba Alice Amir Amy Ana Andrea Anna Anton Aria Arthur Astrid Ava Beatrix Ben Bianca
Bob Boris Brian Bruno Carla Carlos Carmen Cecil Chloe Clara Claude Cora Daisuke Dan Daniel Dara David Dora Edgar Edith
Elena Eli Elsa Emil Emma Enzo Erik Esther Eva Fatima Felix Fiona Frank Freya Gabriel George Greta Hana Hannah Harry
Hassan Hector Heidi Helen Henry Hugo Ian Ibrahim Ida Igor Ines Ingrid Iris Isaac Ivan Jack Jacob James Jane Jasmin
Jean Joan Johan John Jonas Jorge Julia Kai Karim Karin Kate Kenji Kira Lars Laura Lea Leah Lena Leo Liam Lili Linda
Lisa Lola Louis Lucas Lucy Luis Luna Magnus Marco Maria Marie Mark Marta Martin Mary Mateo Max Maya Mei Mia Milan Mina
Miriam Mona Nadia Nina Noah Nora Olaf Olga Oliver Omar Oscar Otto Pablo Paul Paula Pedro Peter Petra Priya Quentin
Rachel Ravi Rita Robert Rosa Ruth Sam Samira Sara Selma Simon Sofia Stefan Sven Tara Theo Thomas Tina Tom Uma Ursula
Vera Victor Viola Walter Wanda Wei Wendy Willem Xavier Yara Yuki Yusuf Zoe Zara
""".split()

CITIES = """
Accra Algiers Amman Amsterdam Ankara Athens Austin Baghdad Baku Bangkok Barcelona Basel Beirut Belgrade Bergen Berlin
Bern Bogota Bonn Boston Bremen Brussels Bucharest Budapest Cairo Canberra Caracas Casablanca Chicago Cologne Copenhagen
Cork Dakar Dallas Delhi Denver Dhaka Doha Dresden Dubai Dublin Durban Edinburgh Essen Florence Frankfurt Galway Geneva
Genoa Ghent Glasgow Graz Hamburg Hanoi Harare Havana Helsinki Houston Istanbul Jakarta Kabul Karachi Kigali Kingston
Kyoto Lagos Lausanne Leeds Leipzig Lima Linz Lisbon Liverpool London Luanda Lusaka Lyon Madrid Malmo Manchester Manila
Marseille Melbourne Miami Milan Minsk Monaco Montreal Moscow Mumbai Munich Nairobi Nantes Naples Nice Osaka Oslo Ottawa
Oxford Palermo Paris Perth Porto Prague Quito Rabat Reykjavik Riga Rome Rotterdam Salzburg Santiago Seattle Seoul
Seville Shanghai Singapore Sofia Stockholm Stuttgart Sydney Tallinn Tehran Tokyo Toronto Tunis Turin Utrecht Valencia
Vancouver Venice Verona Vienna Vilnius Warsaw York Zagreb Zurich
""".split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
COLOURS = "red blue green yellow black white brown purple pink orange grey golden".split()
JOBS = (
    "baker cook doctor driver farmer gardener judge lawyer librarian mechanic nurse painter pilot plumber "
    "poet sailor singer tailor teacher waiter writer carpenter dentist engineer"
).split()
LANGUAGES = (
    "French German Spanish Italian Dutch Polish Greek Turkish Swedish Danish Finnish Japanese Korean Arabic Hindi Czech"
).split()
ROOMS = [*"kitchen bedroom bathroom office garage hallway attic cellar".split(), "living room"]

_ONSETS = "b c d f g h j k l m n p r s t v w z br cr dr fl gr pl sh st tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "t", "k"]


_pieces: list[str] = []


def know_pieces(tokens: list[str]) -> None:
    """From now on invented words are made of those of `tokens` that are plain letters. `train` calls this with
    the vocabulary; the vocabulary itself was made of text without."""
    _pieces[:] = sorted(
        {token for token in tokens if token.isascii() and token.isalpha() and token[1:].islower()}
        | {token for token in tokens if len(token) == 1 and token.isascii() and token.isalpha()}
    )


_KNOWN = [word.lower() for word in (*THINGS, *NAMES, *CITIES) if not held_out(word)]


def invented(rng: random.Random, split: Split) -> str:
    """A word that means nothing. It keeps copying honest: no word list can be learnt by heart.

    A word that training has never seen falls into pieces, and the model can copy only pieces that it has met.
    So most invented words are made of the vocabulary's own pieces (see `know_pieces`), each as often as any
    other. A part is a known word's beginning with another one's end, and the rest is syllables. Never a
    held-out word. In evaluation without pieces: its items must not depend on what `know_pieces` was told.
    """
    while True:
        word = _invented(rng, _pieces if split == "train" else [])
        if not held_out(word.capitalize()) and not held_out(word.lower()):
            return word


def _invented(rng: random.Random, pieces: list[str]) -> str:
    kind = rng.random()
    if kind < 0.6 and pieces:
        return "".join(rng.choice(pieces) for _ in range(rng.choice((1, 2, 2, 3))))
    if kind < 0.8:
        head, tail = rng.choice(_KNOWN), rng.choice(_KNOWN)
        return head[: rng.randint(2, min(5, len(head)))] + tail[-rng.randint(1, min(4, len(tail))) :]
    syllables = [
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    return "".join(syllables)


def draw(rng: random.Random, pool: list[str], split: Split, invent: float = 0.4) -> str:
    """One entry of `pool`. Training: never a held-out one, and a share of invented words (spelt like the
    pool: capitals stay). Evaluation: always a held-out one."""
    if split == "train" and rng.random() < invent:
        word = invented(rng, split)
        return word.capitalize() if pool[0][0].isupper() else word.lower()
    while True:
        word = rng.choice(pool)
        if held_out(word) == (split == "eval"):
            return word


def draw_list(
    rng: random.Random, pool: list[str], split: Split, count: int, distinct_initials: bool
) -> list[str]:
    """`count` different words. In evaluation about half of them, and at least one, are held-out words and
    the rest are known ones in a new combination. `distinct_initials`: no two begin with the same letter, and
    no word is held out: which letter a word begins with cannot be seen in its tokens, it has to be learnt."""
    shares = (0.0, 0.0, 0.3) if distinct_initials else (0.0, 0.2, 0.5, 1.0)
    invent = rng.choice(shares) if split == "train" else 0.0
    words: list[str] = []
    while len(words) < count:
        source: Split = split if not words or rng.random() < 0.5 else "train"
        word = draw(rng, pool, "train" if distinct_initials else source, invent)
        if word in words or (distinct_initials and any(word[0] == other[0] for other in words)):
            continue
        words.append(word)
    rng.shuffle(words)
    return words
