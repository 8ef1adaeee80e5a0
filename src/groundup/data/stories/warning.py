"""A warning is not heeded; what was warned of happens, help comes, and the reason is clear."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
warning @child: place_to | warning | reason | tempt | result | rescue | cure
- the frozen pond | Do not step on the ice before {elder} has tested it | it is still thin in the
  middle | {a color} ball lay out there and shone | the ice cracked, and one foot went into the
  freezing water | {helper} lay down flat and pushed out a long ladder | a warm blanket and {drink}
- the kitchen | Do not touch the pot on the stove | it is as hot as fire | the soup smelled so good
  | {he} burned the tip of {his} finger | {helper} held {his} finger under cold water | a cool cloth
  and a bandage with stars on it
- the big road | Hold my hand when we cross | the cars are faster than they look | an ice cream cart
  stood on the other side | a car stopped with a loud squeal, right in front of {him} | {helper}
  pulled {him} back by the hood | a long, tight hug
- the beehive | Do not poke the hive | it is the home of the bees | {he} wanted to see what was
  inside | an angry cloud of bees came out and stung {him} on the ear | {helper} threw a wet cloth
  over both of them and they ran | an onion slice on the sting
- the old mill | Do not climb the stairs, for they are rotten | nobody has mended them for years |
  there was an owl's nest at the top | a step broke, and one leg hung through the hole | {helper}
  heard {his} cries and pulled {him} out | a cup of tea and a big bandage
- the workshop | Ask before you use the tools | they are very sharp | {he} wanted to carve a whistle
  all alone | the knife slipped and nicked {his} thumb | {helper} pressed a clean cloth on it |
  three stitches of white tape
- the sea | Stay where you can touch the ground | the waves pull harder than you think | a big wave
  looked like such fun | the wave turned {him} upside down and filled {his} nose with salt water |
  {helper} waded in and carried {him} out | a dry towel and an hour in the warm sand
- the playground | Wait until the swing has stopped | it comes back with a lot of force | {his} hat
  had rolled under it | the swing came back and gave {him} a big bump | {helper} caught the swing
  and picked {him} up | a cold spoon on the bump
- the market | Stay close to me | it is crowded, and everyone looks the same from below | a monkey
  was dancing at the corner | suddenly {he} saw only strange legs and strange coats | the {fish
  seller/fruit seller} lifted {him} onto a box until {helper} saw {him} | a candied apple and a hand
  to hold
- the cherry tree | Do not climb onto the dead branch | dead wood breaks without a sound | the
  fattest cherries grew right there | the branch broke, and {he} landed in the nettles | {helper}
  cut a path through the nettles | cool mud on forty little stings
""",
    """
warning @animal: place_to | warning | reason | tempt | result | rescue | cure
- the frozen lake | Do not step on the ice before the moon is full | it is still thin in the middle
  | something {color} sparkled out there | the ice cracked, and {he} was wet up to the neck |
  {helper} pushed out a long branch and pulled | a bed of dry leaves and {drink}
- the farm | Do not go near the farm | there is a dog who never sleeps | the carrots smelled so
  sweet | the dog barked and chased {him} through three hedges | {helper} opened a secret tunnel
  just in time | a long rest until {his} heart was calm
- the beehive | Do not poke the hive | it is the home of the bees | {he} wanted just one drop of
  honey | an angry cloud of bees stung {him} on the nose | {helper} called, "Into the pond!" and
  they both jumped | cool mud on the sting
- the red mushrooms | Do not eat anything that you do not know | pretty things can be bitter | they
  had such lovely white dots | {his} tongue burned and {his} belly turned over | {helper} brought a
  bitter root that cleaned {his} belly out | three days of plain {meal}
- the rapids | Swim only where the water is slow | the fast water has no mercy | the foam looked
  like so much fun | the water spun {him} around and carried {him} toward the falls | {helper} held
  out a willow branch at the last bend | a dry towel of moss and a warm stone
- the bramble tunnel | Stay out of the brambles | it is easy to get in and hard to get out | the
  biggest blackberries hung deep inside | {he} was stuck in the thorns and could not move | {helper}
  bit off the thorns, one by one | a soft bed and someone to pick the thorns out
- the far hill | Be home before dark | the path has many turns | the fireflies danced a little
  farther off, and then a little farther | it was pitch dark, and every path looked the same |
  {helper} climbed a rock and rang the supper bell until {hero} found the way | hot {meal} and an
  early night
- the steep bank | Do not dig under the bank | the sand is loose after the rain | {he} wanted a cave
  of {his} own | the sand came down, and only {his} nose stuck out | {helper} dug and dug until {he}
  was free | a bath to get the sand out of both ears
""",
)

RULES = """
warn_say
| {one_day}, {hero} was going to {place_to}. "{warning}," said {the_helper}, "because {reason}."
  "{Yes, yes/I know/I will remember}," said {hero}.
| {one_day}, {hero} and {the_helper} were {near/close to} {place_to}. "{warning}," {helper} said.
  "Why?" asked {hero}. "Because {reason}."
| "{warning}," {the_helper} had always {said/told {him}}, whenever they talked about {place_to}.
  "After all, {reason}."

warn_tempt
| But {tempt}. "{Just this once/Only for a moment/Nobody will see}," {thought/whispered} {hero}.
| {hero} meant to listen. But then {tempt}, and {he} forgot everything else.
| Then {helper} looked the other way. And {tempt}. "What could happen?" {hero} {thought/said to
  {himself}}.

warn_result
| And then it happened: {result}!
| {hero} did it anyway. {Before {he} knew it/All at once/In the next moment}, {result}.
| It went {well/fine} for {a moment/three seconds}. Then {result}! {feel_scared}

warn_cry
| "Help!" {cried/screamed/called} {hero}. "{helper}! Help me!"
| {hero} {cried out/called as loudly as {he} could}.
| "{Ow/Oh no/Help}!" {cried/wailed/sobbed} {hero}.

warn_rescue
| {Luckily/By good luck}, help was {near/on the way}. {{^rescue}/{^soon}, {rescue}}.
| {{^rescue}/{^soon}, {rescue}}. {Phew/What a fright}!
| {helper} {came running/did not waste a second}. {{^rescue}/{^soon}, {rescue}}.

warn_cure
| Afterwards there was {cure}.
| What {hero} needed now was {cure}, and {he} got it.
| First came {cure}. The talking came later.

warn_talk
| "I am sorry," {said/whispered} {hero}. "You told me, and I did not listen." "{I was so worried/I
  am glad that you are safe}," said {helper}.
| "Why did you not listen?" asked {helper}{ gently/ softly/}. {hero} {sniffed/looked down}. "Because
  {tempt}," {he} said. {helper} {nodded/sighed}. "I understand. But {reason}."
| {helper} was not {angry}. "Now you know why I say it," {helper} said. "{^reason}."

warn_after
| After that, {hero} told everyone who wanted to listen: "{warning}!"
| The next time they came to {place_to}, {hero} {stopped/waited} and {asked first/looked at
  {helper}}.
| From then on, when {helper} gave a warning, {hero} {asked why, and then {he} listened/listened}.

warn_moral: a warning is a kind of love, it is better to listen first than to be sorry later, rules
  often have a good reason, someone who warns you wants you to be safe, a short look before you leap
  saves a lot of tears, careful feet get home safely

warn_story
| {opening} ¶ {warn_say} {warn_tempt} ¶ {warn_result} {warn_cry} ¶ {warn_rescue} {warn_cure} ¶
  {warn_talk} {warn_after} ¶ {teach} {the_end}
| {opening} {warn_say} ¶ {warn_tempt} {warn_result} ¶ {warn_cry} {warn_rescue} ¶ {warn_cure}
  {warn_talk} {cozy_end} ¶ {teach}
| {opening} {warn_say} {warn_tempt} {warn_result} {warn_rescue} {warn_cure} {warn_after} {teach}
"""

SHAPE = Shape("warn", tables=("warning",), helpers=("elder", "parent"))
