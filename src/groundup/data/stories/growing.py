"""A seed needs what it needs; hurrying it does harm, waiting brings a harvest to share."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
seed: seed | plant | need | hurry | harm | sign | threat | guard | harvest | feast
- small black seed | sunflower | water every evening and a lot of sun | dug it up to see if it was
  growing | the little root was dry and had to be covered again at once | a green tip came up with
  the empty seed on its head like a hat | the {snails/slugs} came at night | put a ring of crushed
  eggshells around it | a flower as big as a plate and taller than {helper} | gave the seeds to the
  birds when winter came
- flat white seed | pumpkin | rich soil and plenty of water | poured ten cans of water on it in one
  day | the seed almost swam away | two thick leaves pushed up the soil like a lid | the vine had no
  room and climbed into the {path/hedge} | led the vine along a string | a pumpkin as round as the
  moon | made soup for everyone {near}
- wrinkled brown seed | pea | a stick to climb on | pulled at the first leaf to make it longer | the
  leaf came off in {his} hand | thin green arms reached out and felt for something to hold | a late
  frost came | covered the plants with straw each night | more pods than {he} could count | shelled
  peas together until the bowl was full
- shiny brown nut | walnut tree | a quiet corner and many years | asked it every morning whether it
  was a tree yet | all that asking made the days feel longer | one day there was a twig with two
  leaves | a goat wanted to eat it | built a little fence of sticks | a small tree that would be big
  one day | hung a lantern on it and danced around it
- tiny round seed | radish | loose soil and a little shade at noon | put it under a warm blanket |
  it had no light and turned pale | a row of little green hearts stood in the bed | the
  {birds/sparrows} pecked at the leaves | hung up shiny shells that clinked in the wind | a whole
  bunch of round {color} radishes | had them with bread and salt, and they were nice and hot
- dry gray bulb | lily | cold in winter and sun in spring | brought it inside, where it was warm |
  it grew too fast and fell over | a green nose broke through the last snow | a mole dug right below
  it | spoke politely to the mole and planted garlic around it | a flower that smelled like a whole
  garden | put it in the middle of the table at the spring party
- wrinkled old tuber | potato | a heap of soil around its stem | washed it with soap to make it
  pretty | it did not like the soap and slept for another week | dark green leaves opened, and later
  there were white stars | beetles with stripes came to eat | picked the beetles off, one by one | a
  hole full of potatoes, as if the earth had laid eggs | baked them in the fire and burned their
  tongues
- thin little seed with a feather | lettuce | a drink in the morning and one in the evening | let it
  stand in the hot sun to make it quick | the soil cracked and the seedlings hung their heads | a
  green carpet covered the bed | a rabbit with big eyes came by | planted an extra row just for the
  rabbit | seven crisp heads of lettuce | made a salad so big that they mixed it in a tub
- red bean with a white spot | bean | a tall pole and warm nights | sang to it so loudly that nobody
  could sleep | the bean did not mind, but {elder} did | a loop came up first, and then it stood up
  straight | the wind pulled at the vine | tied it to the pole with {a color} ribbon | pods as long
  as {his} arm | saved one spotted bean for every guest to take home
- strawberry plant with two leaves | strawberry | straw to keep the berries dry | held a candle over
  it to keep it warm | one of the two leaves turned brown | white flowers came, and each turned into
  a small green button | {blackbirds/starlings} watched from the roof | put up a funny scarecrow
  with {a color} hat | a bowl of berries that were red all by themselves | ate them with cream under
  the open sky
""",
)

RULES = """
seed_get
| {day_start}, {the_helper} gave {hero} {a seed}. "{If you are patient/With care and time}, it will
  be a {plant} one day," {helper} said.
| {day_start}, {hero} found {a seed}{ in an old {drawer/box/coat}/ on the path/ in {his} pocket}.
  "What is it?" {he} asked. "It could be {a plant}," said {the_helper}, "but only if you wait."
| "This {seed} has {a plant} asleep in it," said {the_helper}{ {day_lower_seed}/}. {hero} could
  hardly believe it.

day_lower_seed: one spring morning, one day, on the first warm day

seed_plant
| {hero} {made/dug} a hole {as deep as a thumb/as deep as a teacup/with a spoon} and {put/laid} it
  in. It would need {need}.
| They planted it {together/in the best spot}. "It needs {need}," {helper} explained, "and time."
| "What does it need?" asked {hero}. "It needs {need}," said {helper}. "And most of all, time."

seed_hurry
| One day passed. Two days passed. Nothing. {hero} could not wait any longer. {^who} {hurry}.
| Every morning {hero} ran out to look. There was only brown earth. At last {he} {hurry}.
| "When is it coming?" {asked/sighed} {hero} {ten/twenty/a hundred} times a day. Then {he} {hurry}.

seed_harm
| But {harm}. "You cannot pull the spring by its tail," said {helper}.
| That was a mistake, for {harm}. {feel_sorry}
| It did not help, for {harm}. "{Give it time/Patience}," said {helper}. "It works in the dark,
  where you cannot see it."

seed_sign
| So {hero} {waited/learned to wait}. {^who} {counted clouds/helped in the house/told the seed a
  story every night}. And one {weather} morning, {sign}!
| {hero} {took a deep breath/sighed} and waited. After {ten days/two weeks/a long time}, {sign}.
  {feel_happy}
| Then, when {hero} had almost stopped thinking about it, {sign}.

seed_guard
| But then {threat}. {hero} {thought about it/did not give up/knew what to do}. {^who} {guard}.
| The worst was not over: {threat}. So {hero} {guard}.
| One day there was trouble, for {threat}. "I will look after you," {said/promised} {hero}, and {he}
  {guard}.

seed_harvest
| {By the end of {summer/the season}/Slowly, slowly/Week after week} it grew. And then there it was:
  {harvest}!
| It grew and grew. At last, {hero} stood in front of {harvest}.
| {Everyone/{friend}/{^his_parent}} came to {see/look at/admire} {harvest}.

seed_feast
| {hero} invited {everyone/{friend}/all {his} friends}, and they {feast}.
| And what did they do with it? They {feast}.
| {hero} did not keep it all. They {feast}.

seed_moral: good things need time, you cannot hurry what has to grow, patience and care bring a good
  harvest, waiting is easier when you have something to do, what grows slowly is often the best,
  looking after something makes you proud

seed_story
| {opening} ¶ {seed_get} {seed_plant} ¶ {seed_hurry} {seed_harm} ¶ {seed_sign} ¶ {seed_guard}
  {seed_harvest} ¶ {seed_feast} {teach} {the_end}
| {opening} {seed_get} ¶ {seed_plant} {seed_hurry} ¶ {seed_harm} {seed_sign} ¶ {seed_guard} ¶
  {seed_harvest} {feel_happy} {seed_feast} ¶ {teach}
| {opening} {seed_get} {seed_plant} {seed_hurry} {seed_harm} {seed_sign} {seed_harvest} {seed_feast}
  {teach}
"""

SHAPE = Shape("seed", tables=("seed",), helpers=("elder",))
