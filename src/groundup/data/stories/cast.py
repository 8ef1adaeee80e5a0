"""Who is in a story: children or animals with names, a friend, a parent and a wise elder.

Each character is a set of bound words (name and pronouns), so that one stays the same to the end.
"""

from groundup.data.stories.grammar import Scene

_GIRLS = """
Anna Bella Clara Daisy Ella Freya Grace Hanna Iris Julia Kate Lily Mia Nora Olive Penny Rosa Sara
  Tilda
Uma Vera Wendy Zoë Amira Beth Chloe Dora Emma Fiona Gina Holly Ivy Jana Kira Leila Maya Nina Poppy
  Ruby
Sophie Tess Willa Yara Alice Carmen Elsa Greta Hazel Inés Lucy Matilda Naomi Priya Sadie Thea Violet
Aisha Mei Yuki Ingrid Amélie Lola Eve Martha Pia Suki
""".split()
_BOYS = """
Adam Ben Carl Daniel Eli Felix George Hugo Ivan Jack Kai Leo Max Noah Oscar Paul Ravi Sam Tom Victor
Will Zack Amir Bruno Caleb David Emil Finn Gus Henry Isaac Jonas Karim Lucas Milo Ned Omar Peter
  Quinn
Rory Simon Theo Tim Walter Yusuf Arthur Dylan Ethan Frank Jamal Kenji Luis Mateo Nico Otto Philip
René José Sven Toby Anton Bo Hassan Ollie Ezra
""".split()
_ANIMAL_NAMES = """
Pip Bramble Clover Nutmeg Dusty Fern Hop Juniper Moss Pebble Rusty Snowball Thistle Willow Biscuit
Acorn Button Cricket Dapple Ember Fidget Ginger Honey Inky Jasper Kiki Lumpy Muffin Nibbles Oakley
Patch Quill Rumble Sunny Tumble Velvet Whiskers Yippy Zippy Bean Cocoa Dot Flick Hazelnut Maple Olly
Peanut Ripple Sprout Twig Waffle Barley Pepper Scout Mossy Plum Tansy Bumble
""".split()
_SPECIES = """
fox rabbit bear hedgehog squirrel mouse otter badger frog beaver owl raccoon mole deer chipmunk
  turtle
porcupine duck goose lizard sparrow robin weasel toad skunk hamster
""".split()

_HE = ("he", "him", "his", "himself")
_SHE = ("she", "her", "her", "herself")

_CHILD_ELDERS = """
Grandma|she|grandma
Grandpa|he|grandpa
Aunt Rosa|she|aunt
Uncle Joe|he|uncle
Aunt May|she|aunt
Uncle Pete|he|uncle
Grandma Lou|she|grandma
Grandpa Sol|he|grandpa
Mrs. Bell|she|neighbor Mrs. Bell
Mr. Finch|he|neighbor Mr. Finch
Mrs. Okoro|she|teacher Mrs. Okoro
Mr. Lind|he|teacher Mr. Lind
Miss Park|she|teacher Miss Park
Mr. Costa|he|neighbor Mr. Costa
Nana|she|nana
Mrs. Varga|she|neighbor Mrs. Varga
""".split("\n")[1:-1]
_ANIMAL_ELDERS = """
Old Owl|she|friend Old Owl
Mr. Badger|he|neighbor Mr. Badger
Grandmother Hedgehog|she|neighbor Grandmother Hedgehog
Mrs. Heron|she|teacher Mrs. Heron
Old Turtle|he|friend Old Turtle
Grandfather Toad|he|neighbor Grandfather Toad
Mother Goose|she|neighbor Mother Goose
Uncle Beaver|he|old friend Uncle Beaver
Mrs. Mole|she|neighbor Mrs. Mole
Father Stork|he|neighbor Father Stork
Aunt Otter|she|neighbor Aunt Otter
Old Raven|he|friend Old Raven
""".split("\n")[1:-1]


def _person(
    prefix: str, role: str, name: str, noun: str, pronouns: tuple[str, ...]
) -> dict[str, str]:
    he, him, his, himself = (prefix + word for word in _HE)
    words = dict(zip((he, him, his, himself), pronouns, strict=True))
    return {role: name, f"{prefix}child": noun, **words}


def _children(role: str, prefix: str) -> list[dict[str, str]]:
    girls = [_person(prefix, role, name, "girl", _SHE) for name in _GIRLS]
    return girls + [_person(prefix, role, name, "boy", _HE) for name in _BOYS]


def _animals(role: str, prefix: str) -> list[dict[str, str]]:
    return [
        _person(prefix, role, name, species, (_HE, _SHE)[(number + offset) % 2])
        for number, name in enumerate(_ANIMAL_NAMES)
        for offset, species in enumerate(_SPECIES)
    ]


def _elder(line: str) -> dict[str, str]:
    name, pronoun, relation = line.split("|")
    words = _person("e", "elder", name, "", _SHE if pronoun == "she" else _HE)
    return {**words, "his_elder": "{his} " + relation, "elder_relation": relation}


_PARENTS = [
    {**_person("p", "parent", name, "", pronouns), "his_parent": "{his} " + name.lower()}
    for name, pronouns in (("Mom", _SHE), ("Dad", _HE), ("Mama", _SHE), ("Papa", _HE))
]
_CAST = {
    "child": {
        "hero": _children("hero", ""),
        "friend": _children("friend", "f"),
        "elder": [_elder(line) for line in _CHILD_ELDERS],
    },
    "animal": {
        "hero": _animals("hero", ""),
        "friend": _animals("friend", "f"),
        "elder": [_elder(line) for line in _ANIMAL_ELDERS],
    },
}


def choose_cast(scene: Scene, kind: str) -> dict[str, str]:
    """The words for everyone a story of this kind may name; the friend is not the hero's double."""
    cast = _CAST[kind]
    hero = _choose(scene, cast["hero"])
    friend = _choose(scene, cast["friend"])
    while friend["friend"] == hero["hero"] or (
        kind == "animal" and friend["fchild"] == hero["child"]
    ):
        friend = _choose(scene, cast["friend"])
    return {**hero, **friend, **_choose(scene, cast["elder"]), **_choose(scene, _PARENTS)}


def _choose(scene: Scene, characters: list[dict[str, str]]) -> dict[str, str]:
    return characters[scene.index(len(characters))]
