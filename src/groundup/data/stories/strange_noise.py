"""A strange noise, wild guesses, a careful search, and a small true cause that can be helped."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
noise @child: noise | where | guess | other_guess | clue | truth | mend
- tap, tap, tap | the window | a ghost with a cane | a robber | a wet {color} leaf on the glass | a
  branch of the {tree} was knocking in the wind | they tied the branch back with a soft string
- a long, low moan | the attic | a ghost with a toothache | a wolf | a cold stream of air | the wind
  was blowing across an empty bottle | they put a cork in the bottle, and later they played tunes on
  it
- crunch, crunch | under the porch | a bear eating bones | a giant rat | a trail of crumbs | a
  hedgehog was having dog food for dinner | they gave the hedgehog a bowl of its own
- drip, drop, plink | the hallway | a dwarf counting coins | a clock from another world | a little
  puddle on the floor | the roof had a hole no bigger than a pea | they put a pot under it, and
  {parent} mended the roof in the morning
- scratch, scratch | behind the wall | a monster with claws | a prisoner digging a tunnel | a few
  brown seeds on the floor | a mouse family was making a nest for the winter | they carried the nest
  to the barn, where nobody minded
- a squeaky giggle | the garden | an elf | a witch | small wet footprints | two otters were sliding
  down the garden path | they poured some water on the path to make it better
- thump, thump, thump | the stairs | a giant with one leg | a knight in armor | a round dent in the
  lowest step | {his_elder} had left a bag of apples at the top, and it had a hole in it | they
  caught the apples and baked a pie
- a soft humming | inside the mailbox | a tiny orchestra | a machine from the future | a grain of
  yellow dust | a bumblebee had moved in and was warming her eggs | they hung a second box beside it
  for the letters
- snort and whistle | inside the wardrobe | a dragon | a small train | a long gray tail under the
  door | the {neighbor's/fat old} cat was asleep on the sweaters and snoring | they left the door
  open a crack and gave it an old pillow
- clang and rattle | the schoolyard | a robot | a ghost in chains | a shiny lid on the ground | a
  young raccoon had its head stuck in a tin can | they held the can tight while the raccoon pulled
  itself free
- hoo, hoo | the chimney | a lost train | a ghost who wanted to come in | one soft white feather in
  the fireplace | a baby owl had landed on the wrong roof | they waited quietly until its mother led
  it back to the trees
""",
    """
noise @animal: noise | where | guess | other_guess | clue | truth | mend
- tap, tap, tap | above the den | a ghost with a cane | a giant knocking | fresh wood chips on the
  ground | a woodpecker was building a room for her babies | they asked her politely to work after
  breakfast
- a long, low moan | the hollow tree | a ghost with a toothache | a sad bear | a cold stream of air
  | the wind was blowing across a knothole | they hung a curtain of moss in front of it
- crunch, crunch | behind the thicket | a monster eating bones | a wolf | a heap of empty shells | a
  shy squirrel was eating her first nuts of the year | they brought her more nuts and sat down with
  her
- a deep grumbling | under the hill | a dragon | an earthquake | a round hole with warm air coming
  out | a badger was asleep and snoring on his back | they rolled him onto his side, and it was
  quiet
- splash, gurgle, splash | the pond | a sea monster | a thief washing his hands | a trail of bubbles
  | a family of beavers was moving in | they showed the beavers the best place for a dam
- a thin little cry | the reeds | a water ghost | a lost star | a small bent feather | a baby coot
  could not find its nest | they pushed the nest closer with a long stick
- clatter and click | the rocks | a skeleton dancing | a giant crab | a split hoof mark in the mud |
  two young goats were practicing a dance | they clapped along and learned the steps
- hiss and whisper | the dry grass | a hundred snakes | a fire | a cloud of fluffy seeds | the
  thistles were letting go of their seeds in the wind | they caught some seeds and planted them
  elsewhere
- boom, boom | the far side of the lake | thunder | a giant with a drum | a ring of waves on the
  water | a bittern was calling for his mate | they waited until another boom answered
- a squeaky giggle | behind the waterfall | an elf | a water witch | small wet footprints | two
  otters were sliding down the slippery rocks | they took off their coats of mud and slid along
""",
)

RULES = """
noise_hear
| {day_night}, {hero} heard {something/a noise}: {noise}. It came from {where}.
| {day_night}, there was a sound: {noise}. {hero} sat up and {listened/held {his} breath}. It came
  from {where}.
| What was that? {^noise}! {day_night}, {hero} heard it again, and it came from {where}.

day_night
| One {dark/windy/quiet/cool} evening
| One night
| Late one evening
| Just as {he} was about to fall asleep
| On a {windy/quiet/misty} night
| One evening, when the {lamps were out/stars were out/moon was thin}

noise_guess
| {feel_scared} "Maybe it is {guess}," {he} {thought/whispered}. "Or {other_guess}!"
| "It must be {guess}," {hero} {whispered/thought}. {feel_scared}
| {hero} told {friend} {about it/what {he} had heard}. "I think it is {guess}," said {hero}. "No,"
  said {friend}, "it is {other_guess}." They looked at each other and {gulped/shivered/shook}.

noise_go
| "{Guessing does not help/We will not know until we look/Let us go and see}," said {the_helper}.
  {helper} {took/brought} a {lantern/small light/lamp}, and they {tiptoed/crept/went} closer.
| {hero} {could not sleep any more/wanted to know}. {^he} woke {the_helper}. "{Come with me/Please
  come}," {he} {whispered/said}. Side by side they {tiptoed/crept} closer.
| It was still for a {while/moment}. Then it came again: {noise}! "I am {going to look/too curious
  to hide}," {whispered/said} {hero}. {^the_helper} came along.

noise_clue
| First they found a clue: {clue}. "{Interesting/Strange/Aha}," said {helper}. "What kind of
  {ghost/monster} leaves that {behind/lying around}?"
| "Look there," {whispered/said} {hero}. It was {clue}.
| Then the light fell on something. It was {clue}. They {looked at each other/went one step
  closer/bent down}.

noise_truth
| And then they saw it. There was no {monster/ghost/giant} at all. {{^truth}/{^sure_enough},
  {truth}}!
| {hero} {looked/peeked} {around the corner/through a gap/over {helper}'s shoulder} and began to
  {laugh/giggle}. {{^truth}/{^sure_enough}, {truth}}.
| "So that is what it was!" {said/laughed} {hero}. {{^truth}/{^sure_enough}, {truth}}.

noise_mend
| {Now/Together} they {knew what to do/had to smile}. In the end, {mend}.
| "Let us {do something/help}," said {helper}. So {mend}.
| {{^mend}/{^soon}, {mend}}.

noise_end
| The next {evening/night}, {hero} listened. It was quiet. {^he} almost missed the noise.
| {hero} {crawled/climbed} back into bed and {chuckled/smiled}. "{^guess}," {he}
  {whispered/murmured}. "How silly."
| After that, whenever {hero} heard a strange noise, {he} {was not afraid/did not hide}. {^who}
  {went to look/took a light and went to look}.
| {cozy_end}

noise_moral: it is better to look than to guess, most monsters turn out to be something small, being
  curious is stronger than being afraid, a light and a friend chase away most fears, strange noises
  often have a simple cause, you should find out the truth before you tell a scary story

noise_story
| {opening} ¶ {noise_hear} {noise_guess} ¶ {noise_go} ¶ {noise_clue} {noise_truth} ¶ {noise_mend}
  {noise_end} {teach} {the_end}
| {opening} {noise_hear} ¶ {noise_guess} ¶ {noise_go} {noise_clue} ¶ {noise_truth} {noise_mend} ¶
  {noise_end} {teach}
| {opening} {noise_hear} {noise_guess} {noise_go} {noise_truth} {noise_mend} {teach}
"""

SHAPE = Shape("noise", tables=("noise",), helpers=("elder", "parent", "friend"))
