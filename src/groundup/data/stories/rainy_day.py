"""Rain spoils the plan; something is made indoors instead, with a hitch and a way around it."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
rain: plan | make | steps | hitch | fix | best
- fly a kite | build a {ship/castle} out of {chairs and blankets/branches and blankets} | they hung
  up the blankets, made a flag and chose a captain | the biggest blanket kept falling down | they
  tied its corner to a heavy {stone/jug} | the rain sounded just like the sea
- have a picnic | have a picnic on the floor | they spread out a cloth, set out {sweet} and made
  {drink} | a whole cup tipped over | they used the spot as a lake for the toy ducks | there was not
  a single ant
- play in the sand | bake {sweet} | they stirred and tasted, and tasted again | there was no sugar
  left | they used honey instead | the whole {home} smelled wonderful
- swim in the lake | put on a play | they made a stage, painted {a color} dragon and learned their
  words | nobody wanted to be the {donkey/tree/villain} | they made a donkey out of a
  {bucket/pumpkin} and a mop of straw | everyone clapped so hard that nobody could hear the rain
- go to the fair | hold a fair at home | they set up a ring toss, a fishing pond and a funny mirror
  | they had no prizes | they made medals out of {clay/bark} and string | everyone won something,
  even the {cat/snail}
- look for birds | make an orchestra | they used pots for drums, a comb for a flute and dry peas in
  a cup | it was so loud that {elder} covered both ears | they took turns and played softly in
  between | the rain on the roof kept perfect time
- run races | hold a snail race | they drew a track and gave each snail a number | the snails went
  to sleep in the middle of the race | they put {lettuce/a fresh leaf} behind the finish line | the
  smallest snail won by the length of one horn
- ride to the hills | draw a map of a country that nobody knew | they drew rivers, a mountain of
  cheese and a forest of umbrellas | a drop from the ceiling fell on the map | they turned the blot
  into a lake with a monster | they traveled further than they had ever been
- climb trees | tell stories in the dark | they lit {a candle/a lantern} and each told one part |
  the story got too scary | they let the ghost slip on a banana peel | they laughed until their
  bellies hurt
- dig for treasure | sort through the big old {chest/box} | they found hats, bells and {a color}
  cloak | two of them wanted to wear the cloak | they made it into a cloak for two | they marched
  around like a very wide king
- sail boats on the pond | make a fleet of paper boats | they folded big boats and little boats and
  gave them names | there was no water to sail them on | they put out a tub and let the rain fill it
  | the rain filled the tub to the brim for free
- water the garden | make a puppet theater | they made puppets from old {socks/gloves/leaves} and
  buttons | one puppet lost its nose | they gave it a {carrot/radish/walnut} for a nose | it was the
  funniest nose in the world
""",
)

RULES = """
rain_plan
| {hero} and {friend} had been {waiting/planning} all week. {Today/Now} they would finally {plan}.
| {hero} woke up early. {Today/This Saturday/This Sunday} was the day to {plan} with {friend}.
| "Tomorrow we will {plan}," {hero} had {said/promised}, and {friend} had hardly slept.

rain_fall
| But {when they looked out/at breakfast/just as they were ready to go}, {it began to rain/the first
  drops fell/big gray clouds came over the {hill/roof}}. It {rained/poured} and {rained/poured}.
| Plip, plop. {Then/Soon} it was pouring. The {path/street/yard} turned into a {river/lake/muddy
  stream}.
| Outside, rain drummed on {everything/the leaves/the roof} and the wind {howled/shook the
  branches}. There would be no going out today.

rain_moan
| "{It is not fair/What a bad day/Now everything is spoiled}," {grumbled/moaned/sighed} {hero}.
  {friend} {pressed {fhis} nose against the window/watched the drops run down/pulled a long face}.
| {feel_sad} "Stupid rain," {muttered/said} {friend}.
| They {sat/stood} {by the window/at the door} and watched the drops. {hero} counted
  {forty/sixty/ninety} of them. It did not get better.

rain_idea
| "What can you do here that you cannot do out there?" asked {the_helper}. They thought. "We could
  {make}!" {said/cried} {hero}.
| Then {friend} {jumped up/had an idea/grinned}. "Let us {make}!" {fhe} said.
| "The rain will not stop because you are cross," said {the_helper}. "But you could {make}." {hero}
  looked at {friend}. {friend} looked at {hero}. {Why not/Yes, why not}?

rain_make
| They {began/started/set to work} at once. {{^steps}/{^soon}, {steps}}.
| Soon they were {busy/hard at work}: {steps}.
| First they {cleared the floor/made some room/looked for everything they needed}. Then {steps}.

rain_hitch
| There was one problem: {hitch}. But {hero} knew what to do. In the end, {fix}.
| Then {hitch}. "{Oh no/Oh dear}!" said {friend}. "Wait," said {hero}. So {fix}.
| It did not go smoothly, because {hitch}. They thought about it, and {fix}.

rain_best
| And the best part? {^best}.
| It turned out that {best}.
| {friend} {laughed/beamed}. It was {wonderful/better than they had hoped}: {best}.

rain_end
| "{Look/Listen}," said {hero} after a long time. "The rain has stopped." But {nobody wanted/neither
  of them wanted} to {go out/stop} now.
| When the sun came out, there was a {big/wide/double} rainbow. They {waved at it/looked at it} and
  {went on playing/went back to their game}.
| "I hope it rains {tomorrow/again soon}," said {friend}{, and they both laughed/}.
| By {evening/bedtime}, they had forgotten that they ever wanted to {plan}.

rain_moral: a spoiled plan can be the beginning of a better one, there is no bad weather when you
  have good ideas, you cannot stop the rain but you can choose what to do with it, a little trouble
  makes you inventive, fun is something you can make yourself, grumbling does not stop the rain

rain_story
| {opening} {friend_intro} ¶ {rain_plan} {rain_fall} ¶ {rain_moan} ¶ {rain_idea} {rain_make} ¶
  {rain_hitch} {rain_best} ¶ {rain_end} {teach} {the_end}
| {opening} {rain_plan} {rain_fall} {rain_moan} ¶ {rain_idea} ¶ {rain_make} {rain_hitch} ¶
  {rain_best} {rain_end} {cozy_end} ¶ {teach}
| {rain_plan} {rain_fall} {rain_idea} {rain_make} {rain_hitch} {rain_end} {teach}
"""

SHAPE = Shape("rain", tables=("rain",), helpers=("elder", "parent"))
