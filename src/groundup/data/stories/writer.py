"""Writes one story after another: picks a shape and a cast, expands, and sets the paragraphs."""

from collections.abc import Iterator, Mapping
from functools import cache
from random import Random

from groundup.data.stories import (
    animal_in_need,
    bedtime,
    broken_thing,
    fear,
    gift,
    greed,
    growing,
    honesty,
    lost_thing,
    lost_way,
    new_friend,
    phrases,
    quarrel,
    race,
    rainy_day,
    skill,
    strange_noise,
    warning,
    wish,
    words,
)
from groundup.data.stories.cast import choose_cast
from groundup.data.stories.grammar import Grammar, Scene
from groundup.data.stories.shape import Shape

SHAPE_MODULES = (
    animal_in_need,
    bedtime,
    broken_thing,
    fear,
    gift,
    greed,
    growing,
    honesty,
    lost_thing,
    lost_way,
    new_friend,
    quarrel,
    race,
    rainy_day,
    skill,
    strange_noise,
    warning,
    wish,
)

_FIRST_MENTION = {
    "friend": "{his} friend {friend}",
    "elder": "{his_elder}",
    "parent": "{his_parent}",
}
_SETTING = {"near": "{near}", "home": "{home}", "homely": "{homely}"}


def endless_stories(seed: int) -> Iterator[str]:
    """Stories without end, the same for the same seed on every machine and Python."""
    scene = Scene(load_grammar(), Random(seed))
    plans = [(module.SHAPE, kind) for module in SHAPE_MODULES for kind in module.SHAPE.kinds]
    while True:
        shape, kind = plans[scene.index(len(plans))]
        scene.start(kind)
        yield tell_story(scene, shape, choose_cast(scene, kind))


def tell_story(scene: Scene, shape: Shape, cast: Mapping[str, str]) -> str:
    """One story of this shape, with this cast, in a scene that has just been started."""
    scene.bind(cast)
    helper = shape.helpers[scene.index(len(shape.helpers))]
    scene.bind({"helper": f"{{{helper}}}", "the_helper": _FIRST_MENTION[helper]})
    scene.bind(_SETTING)
    scene.bind(shape.words)
    for table in shape.tables:
        scene.bind_row(table)
    scene.bind({"moral": f"{{{shape.name}_moral}}"})
    story = scene[f"{shape.name}_story"]
    # Sentences that came out empty leave their spaces behind.
    while "  " in story:
        story = story.replace("  ", " ")
    return story.rstrip(" ¶").replace(" ¶ ", "\n\n")


@cache
def load_grammar() -> Grammar:
    """All rules and tables; read once, when the first story is wanted."""
    grammar = Grammar()
    grammar.add_rules(words.WORDS)
    grammar.add_rules(phrases.PHRASES)
    for module in SHAPE_MODULES:
        grammar.add_rules(module.RULES)
        for table in module.TABLES:
            grammar.add_table(table)
    return grammar
