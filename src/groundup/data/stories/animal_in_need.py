"""A creature is in trouble; the help fits the trouble, and the creature gives something back."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
need @child: creature | where | trouble | first | help | result | later
- baby bird | under {a tree} | had fallen out of its nest | tried to reach the nest, but it was much
  too high | {helper} held the ladder while {hero} lifted the bird back into the nest on a big leaf
  | its mother came back with a fat worm | it sat on the windowsill every morning and sang
- kitten | at the very top of {a tree} | had climbed up and did not know how to get down | called
  and called, but the kitten only cried louder | {helper} leaned a long board against the trunk, and
  {hero} put a saucer of milk at the bottom | the kitten came down the board, one paw after another
  | it slept at the foot of {hero}'s bed
- hedgehog | beside the vegetable garden | had rolled itself into a net and could not get out |
  pulled at the net, but that made it tighter | {helper} brought scissors, and {hero} cut the
  strings one by one | the hedgehog uncurled, sniffed and trotted away | it ate every slug in the
  garden, and the lettuce grew big
- duckling | on the wrong side of the fence | had lost its mother and was peeping sadly | looked for
  the mother duck, but could not see her | {hero} carried the duckling in {his} hat, and {helper}
  listened for quacking | they heard the mother duck at the pond, and the duckling jumped straight
  in | a whole row of ducks came to say hello whenever {hero} walked by
- bee | on the garden path | was cold and wet and too weak to fly | blew on it gently, but it did
  not move | {helper} brought a spoon with a drop of sugar water, and {hero} held it very still |
  the bee drank, cleaned its wings and buzzed away | the apple trees were full of bees, and there
  were more apples than ever
- turtle | in a deep ditch | lay on its back with all four legs in the air | tried to turn it over
  with one hand, but it was too heavy | {hero} and {helper} put their hands under the shell and
  turned it together | the turtle blinked, stretched its neck and walked off toward the pond | it
  let {him} see its three tiny babies
- little fish | in a puddle by the river | was stuck because the water had gone down | tried to
  catch it with {his} hands, but it was too slippery | {helper} fetched a bucket, and {hero} scooped
  the fish up with plenty of water | with one flick of its tail it was back in the river | something
  silver jumped out of the water each time {he} passed
- lamb | behind the stone wall | was caught in a thorny bush | pulled at the branches and pricked
  {his} fingers | {helper} bent the thorns aside with thick gloves, and {hero} lifted the lamb free
  | the lamb ran to its mother and drank until its tail wiggled | the farmer gave {him} a ball of
  soft white wool
- frog | at the bottom of an empty barrel | could not jump high enough to get out | held a hand
  down, but {his} arm was too short | {hero} and {helper} put in stones and sticks until they made a
  little stair | the frog hopped from stone to stone and out into the grass | it croaked under the
  window when it was going to rain
- puppy | behind the {bakery/train station/market hall} | was limping because it had a thorn in its
  paw | tried to pet it, but it whimpered and pulled back | {helper} held the puppy and spoke softly
  while {hero} pulled out the thorn | the puppy licked both of them from chin to forehead | nobody
  came to ask for it, so it came to live with {hero}
- ladybug | in the middle of the bathtub | kept sliding down the smooth white side | picked up a
  sponge, but that scared it | {hero} held out a paper towel like a long white road, and {helper}
  opened the window | the ladybug walked up, opened its wings and flew off | there was not a single
  louse on the roses that year
- owl | in the dark barn | had got one wing stuck between two boards | climbed up on the hay, but
  the owl snapped its beak | {helper} threw a soft cloth over it to keep it calm, and {hero} pushed
  the boards apart | the owl shook its feathers and sailed out without a sound | the mice left the
  corn alone, and the owl hooted a greeting each night
""",
    """
need @animal: creature | where | trouble | first | help | result | later
- baby bird | in the tall grass | had fallen out of its nest | tried to reach the nest, but it was
  much too high | {helper} found a long branch, and the little bird hopped up it with {hero} close
  behind | its mother came back with a fat worm | it sang for {hero} every morning
- beetle | in the middle of the path | lay on its back and kicked with all its legs | blew at it,
  but it only spun around | {hero} held out a twig, and {helper} steadied the other end | the beetle
  took hold, turned over and bowed | it showed {him} where the ripest blackberries grew
- snail | on a hot, flat rock | was dry and far away from any shade | tried to push it, but it was
  stuck fast | {helper} carried water in a leaf and poured it out while {hero} held up a fern for
  shade | the snail stuck out its horns and glided into the moss | it left a silver trail that led
  {him} home in the fog
- little fish | in a puddle beside the stream | was stuck because the water had gone down | tried to
  catch it, but it was too slippery | {hero} and {helper} dug a narrow ditch from the puddle to the
  stream | the water ran along it, and with one flick the fish was free | something silver jumped
  out of the water each time {he} passed
- moth | in a spider's old web | could not free its wings | pulled at the threads, but they were
  sticky | {helper} wet the threads with dew, and {hero} lifted them off one by one | the moth
  rested for a moment and fluttered up to the moon | it danced around {him} on warm evenings
- newt | under a fallen branch | was pinned by the tail | pushed against the branch, but it did not
  move | {helper} used a pole to lift the branch, and {hero} pulled the newt out | the newt wiggled
  its tail, and it was quite whole | it told {him} whenever a storm was on its way
- baby bat | on the floor of the cave | had let go in its sleep and could not take off | tried to
  hold it up, but its wings were folded tight | {hero} climbed on {helper}'s back and hung the baby
  on the lowest ledge | its mother swooped down and wrapped it in her wings | there were hardly any
  mosquitoes near {his} bed
- ant | on a leaf in the middle of the pond | was drifting farther and farther from the shore |
  waved and shouted, but that did not bring it closer | {helper} made little waves with a stick, and
  {hero} caught the leaf with a long reed | the ant ran ashore and shook all its feet | a hundred
  ants helped {him} to carry home {his} winter nuts
- lost cub | at the foot of the cliff | had wandered away and could not find the way back | asked
  where it lived, but it could only cry | {hero} gave it berries, and {helper} followed the small
  footprints back through the mud | around the bend sat a worried mother, who hugged all three of
  them | she shared her warm cave with {him} when the first snow fell
- duckling | among the reeds | was tangled in long water grass | tugged at the grass, but it was too
  tough | {hero} chewed through the stems while {helper} kept the duckling calm | it popped up like
  a cork and paddled to its brothers | it taught {him} how to float without sinking
""",
)

RULES = """
need_find
| {day_start}, {hero} {was walking/was playing/went for a walk} {near {place}/alone/on {his} own}
  when {he} heard a {small/faint/strange/sad} sound. {^where}, {he} found {a creature}. It
  {trouble}.
| {day_start}, {hero} {stopped/stood still/looked twice}. {^where}, there was {a creature}. The poor
  thing {trouble}.
| {sky_line} {hero} was on the way to {place} when {he} saw something move. It was {a creature}!
  {^where}, it sat all alone. It {trouble}.

need_pity
| "{Poor/Oh, you poor} little {thing/one}," {whispered/said} {hero}. "{Do not be afraid/I will help
  you/Wait, I am coming}."
| {hero} {knelt/crouched} down. The {creature} looked at {him} with {round/dark/shiny/frightened}
  eyes.
| {hero} could have {walked on/gone home/looked away}. But {he} {knew/thought of} how it felt to be
  {small/alone/scared}.
| The {creature} {shivered/trembled/blinked}. {hero} knew that {he} had to do something.

need_try
| First {he} {first}.
| {^who} {first}. This was not a job for one.
| At first {hero} {first}. "I need help," {he} thought.

need_call
| {^who} {ran/hurried} to get {the_helper}. "{Come quickly/Please come/Help}!" {he} {called/cried}.
  "There is {a creature}, and it needs us!"
| "{helper}! {helper}!" {called/shouted} {hero}. {^the_helper} came {at once/running/right away}.
| So {hero} {fetched/called/went to find} {the_helper}. "We must be {quiet/gentle/patient}," said
  {helper}, "or we will frighten it."
| "What shall we do?" asked {hero}. {^the_helper} {had come to look and thought/thought/looked
  around} for a moment. "I think I know," {helper} said.

need_help
| {^slowly}, they set to work. {{^help}/{^soon}, {help}}.
| {{^help}/{^soon}, {help}}.
| It was not easy, and they had to {try twice/be patient/stop and rest}. {{^help}/{^soon}, {help}}.

need_result
| And then {result}!
| It took a {moment/while}. Then {result}.
| They {held their breath/waited/watched}. At last, {result}.

need_joy
| "We did it!" {whispered/said/laughed} {hero}.
| {feel_happy}
| {hero} {waved/watched} until it was {gone/out of sight}. "Good luck, little friend," {he} said.

need_later
| And the {creature} did not forget. {Later/That summer/From then on}, {later}.
| {Weeks later/Some days later/Before long}, {hero} found out that kindness comes back: {later}.
| After that, {later}.

need_moral: even a small kindness can change a whole day, kindness comes back to you in the end,
  nobody is too small to be helped and nobody is too small to help, it is good to stop when someone
  is in trouble, gentle hands can do great things, asking for help is part of helping, those who are
  kind to animals find friends everywhere

need_story
| {opening} ¶ {need_find} {need_pity} ¶ {need_try} {need_call} ¶ {need_help} {need_result} ¶
  {need_joy} {need_later} ¶ {teach} {the_end}
| {opening} {need_find} ¶ {need_pity} {need_try} ¶ {need_call} ¶ {need_help} ¶ {need_result}
  {need_joy} ¶ {need_later} {cozy_end} {teach}
| {need_opening} {need_find} {need_pity} {need_call} {need_help} {need_result} {need_later} {teach}

need_opening
| {opening}
| {hero} loved animals of every kind. {opening_more}
| {hero} had {a trait} heart and sharp {eyes/ears}.
"""

SHAPE = Shape("need", tables=("need",), helpers=("elder", "friend"))
