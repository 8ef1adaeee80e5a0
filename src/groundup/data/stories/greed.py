"""Someone takes too much; what follows fits what was taken, and sharing puts it right."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
greed: plenty | source | warning | took | result | remedy | share
- ripe plums | a plum tree heavy with fruit | Three are plenty, and leave some for the others | ate
  nineteen of them, one after another | {his} belly hurt so much that {he} had to lie down | mint
  tea and a long rest | picked a basket of plums for the whole neighborhood
- {muffins/cookies/plum tarts/cinnamon rolls/cream puffs} | a table set for the feast | One for each
  of us | stuffed six of them into {his} mouth and four into {his} pockets | {he} got the hiccups,
  and crumbs fell out of {his} pockets wherever {he} went | a glass of water and a chat about
  sharing | baked a new batch and served everyone else first
- nuts | a bag of nuts for all | Take one handful | grabbed so many that {his} hand got stuck in the
  jar | the jar would not come off, and {he} had to walk around with it | letting go of half of them
  | cracked the nuts and put one on every plate
- shells | a beach full of shells | Take only what you can carry | filled {his} bag until the seams
  creaked | the bag burst, and the shells rolled back into the waves | picking up only the five
  prettiest ones | gave one shell to each friend
- honeycomb | a kind old bee keeper with a honeycomb | A little spoonful for everyone | ate the
  whole comb in one go | {he} was sticky from head to toe, and a cloud of wasps followed {him} | a
  bath in the cold stream | asked for one spoonful next time and passed it on
- balloons | a man with a hundred balloons | One balloon for each | held on to twenty balloons at
  once | the wind lifted {him} off {his} feet, and {he} hung above the {pond/hedge} | letting go of
  them, one after another | gave the last two balloons to {the youngest ones/two little twins}
- flowers | a meadow full of flowers | Leave some for the bees | picked every single one {he} could
  see | by evening they had all wilted, and the bees flew around with nothing to eat | scattering a
  bag of seeds over the meadow | invited everyone to watch the new flowers grow
- blankets | a pile of blankets for a cold night | One for each bed | took five of them | {he} was
  so hot that {he} could not sleep, and the others shivered | giving back four of them | lay down
  close to the others, where it was warmest
- berries | a bush full of berries | Share them with {friend} | hid all the berries under {his} bed
  | they turned to mush, and the ants marched in | cleaning the whole floor with a brush | showed
  {friend} the bush and picked one berry for each of them in turn
- paints | a box of paints for everyone | Use them together | hid all the colors but {color} behind
  {his} back | the picture that everyone wanted to make stayed pale and empty | putting the box in
  the middle of the table | mixed a new color with {friend} and named it after {fhim}
- toys | a heap of toys at the playground | Let the others play too | sat down on top of the heap so
  that nobody could take any | {he} could not play with any of them without getting up | climbing
  down from the heap | built a town out of all the toys with {friend}
- pancakes | a tower of pancakes on the stove | Two for each of you | ate the whole tower before the
  others woke up | {he} could not move, and {he} had to roll to the sofa | a slow walk in the fresh
  air | learned to make pancakes and made a tower for everyone
""",
)

RULES = """
greed_source
| {day_start}, {hero} {came upon/found/saw} {source}. {^his} eyes grew {big/wide/round}.
| {day_start}, {hero} and {friend} {came upon/found/stood in front of} {source}.
| {day_start}, there was a {surprise/treat}: {source}. How lucky they were!

greed_warn
| "{warning}," said {the_helper}. {hero} {nodded/heard it, but did not really listen/only looked at
  the {plenty}}.
| {^the_helper} {smiled/raised a finger}. "{warning}," {helper} said.
| "{warning}," {the_helper} {reminded {him}/told {him}}. But {hero} thought only of the {plenty}.

greed_take
| {hero} {wanted more/could not stop/did not want to share}. {^who} {took}.
| As soon as nobody was looking, {hero} {took}.
| "More, more!" {thought/muttered} {hero}. And {he} {took}. "Do you not want to leave any for us?"
  asked {friend}.

greed_result
| It did not take long. {{^result}/{^soon}, {result}}. {feel_sorry}
| And what came of it? {{^result}/{^soon}, {result}}.
| But {soon/before long/an hour later}, {result}. "Ohhh," {groaned/moaned} {hero}.

greed_talk
| "{What happened/What is this}?" asked {helper}. {hero} {told the truth/hung {his} head/blushed}.
  "I {took/wanted} too much," {he} {said/admitted}.
| {friend} did not {laugh/say "I told you so"}. "Does it feel good to have everything?" {fhe} asked.
  "{Not at all/No}," {hero} {said/sighed}.
| {helper} {shook with laughter/tried not to smile}. "{Too much is too much/Now you know why},"
  {helper} said.

greed_remedy
| What helped was {remedy}.
| There was only one cure: {remedy}.
| It took {remedy}, and then it was better.

greed_share
| The next day, {hero} {share}.
| And then, to {everyone's/{friend}'s} surprise, {hero} {share}.
| {hero} {wanted to make it right/had learned something}. {^who} {share}, and {this time/now} it
  {felt/was} {good/just right}.

greed_glad
| Everyone {cheered/laughed/smiled}, and {hero} {felt/was} {happy}.
| "This is {much/so much} better," {said/thought} {hero}.
| {friend} {gave {him} a hug/put an arm around {him}}. "{Thank you/I like it like this}," {fhe}
  said.

greed_moral: enough is better than too much, what you share tastes twice as good, those who want
  everything often end up with nothing, it is good to leave something for others, too much of a good
  thing is not good any more, sharing makes everyone glad and nobody poor

greed_story
| {opening} {friend_intro} ¶ {greed_source} {greed_warn} ¶ {greed_take} ¶ {greed_result}
  {greed_talk} ¶ {greed_remedy} {greed_share} {greed_glad} ¶ {teach} {the_end}
| {opening} ¶ {greed_source} {greed_warn} {greed_take} ¶ {greed_result} ¶ {greed_talk}
  {greed_remedy} ¶ {greed_share} {greed_glad} {cozy_end} {teach}
| {opening} {greed_source} {greed_warn} {greed_take} {greed_result} {greed_remedy} {greed_share}
  {teach}
"""

SHAPE = Shape("greed", tables=("greed",), helpers=("elder", "parent"))
