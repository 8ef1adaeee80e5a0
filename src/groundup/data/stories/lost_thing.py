"""Something dear is lost; calm thinking and a helper lead back to it."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
lost @child: thing | use | clue | found | because
- teddy bear | hug it at bedtime | I had it when I made my bed | between the bed and the wall | it
  had slid down when the blanket was shaken out
- {color} scarf | wear it on cool mornings | I had it when I swung on the gate | on the garden gate
  | it had caught on a {bent/rusty} nail
- toy train | push it along the floor | I had it when we ate breakfast | under the kitchen stove |
  the floor was not quite flat, and the train had rolled away all by itself
- silver whistle | blow it like a train driver | I had it when we watched the ducks | in the grass
  beside the pond | its string had come undone
- picture book | read it on the porch | I had it when it began to rain | in the dog's basket | the
  dog had carried it in so that it would not get wet
- wooden boat | sail it in the bath | I had it when I dried my hair | in the laundry basket | it had
  been wrapped up in a wet towel
- {color} ball | bounce it against the wall | I kicked it very hard yesterday | under the thorny
  hedge | it had bounced over the {fence/shed} and rolled away
- glass marble | roll it down the stairs | I heard it go plop in the hallway | in the toe of a rain
  boot | it had jumped off the last step and dropped inside
- straw hat | wear it like a farmer | I put it on the fence while I picked peas | on the scarecrow's
  head | someone had thought that the scarecrow needed it
- music box | listen to it before bed | I heard it in the attic last night | behind the old mirror
  in the attic | {he} had carried it there to dance and had forgotten it
- magnifying glass | look at bugs with it | I was watching a beetle | in the flower bed | {he} had
  put it down to let a {beetle/ladybug} walk over {his} hand
- rag doll | have tea parties with it | I helped to carry the vegetables | in the basket of potatoes
  | it had fallen in with the potatoes and looked just as brown
- lucky coin | spin it on the table | I wanted to put it somewhere very safe | in the empty cookie
  jar | {he} had hidden it there {himself} and had forgotten all about it
- jump rope | jump with it a hundred times | I was playing with the wagon | under the {color} wagon
  | {he} had used it as a leash for the wagon
- sock puppet | put on shows with it | I wore it on my hand when I hung up the wash | on the washing
  line | it had been hung up to dry between two real socks
- paper crown | be the ruler of the yard in it | I was king of the compost heap | in the wheelbarrow
  | the wind had picked it up and dropped it there
- little drum | beat it and march up and down | Grandma asked me to be quiet for her nap | under the
  sofa | {he} had pushed it there so that nobody would step on it
- toy telescope | look at the moon through it | I was looking at the stars | on the balcony behind
  the fern | it had been too dark to see where it rolled
""",
    """
lost @animal: thing | use | clue | found | because
- shiny pebble | watch it sparkle in the sun | I was washing it in the stream | under the little
  bridge | the water had carried it there bit by bit
- acorn whistle | blow it at sunrise | I heard a magpie right behind me | in a magpie's nest | the
  magpie had thought it was pretty and meant no harm
- {color} feather | wear it behind one ear | I felt a big gust of wind | among the lily pads | the
  wind had carried it over the reeds
- walnut boat | sail it on puddles | I tied it to a reed | behind the beaver dam | the knot had come
  loose in the night
- leaf umbrella | twirl it in the drizzle | I leaned it against a snail | on the far side of the
  path | the snail had slowly walked away with it
- berry basket | fill it to the top | I stopped to tie up some twigs | next to the raspberry bush |
  {he} had set it down and followed a butterfly
- blanket of moss | curl up under it | I hung it up to dry | at the bottom of the hill | it had
  blown off the branch and rolled up like a snail
- snail shell | listen to it hum | I was digging a hole for a turnip | under a heap of fresh soil |
  {he} had dug the hole and buried the shell by mistake
- honey pot | lick the last drops from it | I wanted to hide it from the ants | inside the hollow
  stump | {he} had hidden it so well that nobody could see it
- little bell | ring it at supper time | I heard it ring when I jumped | in a bed of nettles | its
  ribbon had torn on a thorn
- string of rowan beads | wear it to parties | I was dancing at the pond | around the neck of a
  sleepy goose | the goose had woken up wearing it and had wondered why
- pine cone cart | pull it over the roots | I parked it at the top of the hill | in the middle of
  the ferns | nobody had put a stone behind the wheel
- acorn cap hat | wear it tilted to one side | I bowed to Mrs. Duck | in a clump of mushrooms | it
  had rolled away and looked just like a mushroom
- reed flute | play it at dusk | I stuck it in the mud for a moment | among the tall reeds | it
  looked exactly like every other reed
""",
)

RULES = """
spot @child: under the bed, behind the curtains, in the toy box, under the table, inside the
  wardrobe, on top of the bookshelf, in the bathtub, behind the piano, in the laundry basket, under
  the rug, between the sofa cushions, in the cellar, on the windowsill, inside every shoe, in the
  garden shed, behind the flower pots, in the sandbox, under the stairs, in the kitchen drawers,
  beside the mailbox
spot @animal: under the roots, behind the big rock, in the hollow log, between the ferns, inside the
  den, under a heap of leaves, behind the waterfall, in the tall grass, under the bridge, beside the
  stump, in the thistle patch, on top of the anthill, near the rabbit hole, under the brambles, in
  the reeds, behind the mushrooms, along the muddy path, inside the empty beehive

junk @child: dust, an old sock, a button, three crumbs, a spider, a broken crayon, a lonely puzzle
  piece, half a cookie, a bottle cap, a rubber band, a pencil stub
junk @animal: dry leaves, a cross beetle, a cracked nut, three ants, an old feather, a sleepy worm,
  a pine cone, a puddle, a surprised frog

lost_love
| {hero} had {a thing}. {^he} loved to {use}.
| More than anything, {hero} loved {his} {thing}. Every {day/morning/evening}, {he} would {use}.
| For {his} birthday, {hero} had been given {a thing}. Nothing was more fun than to {use}.
| {hero}'s favorite thing in the whole {wide /}world was {a thing}. {^who} {liked/loved} to {use}.
| {hero} owned only a few things, and the best of them was {a thing}. {^he} never got tired of it.

lost_gone
| {day_start}, {hero} {reached for/wanted/went to get} {his} {thing}, but it was {not
  there/gone/nowhere to be seen}.
| {day_start}, {his} {thing} was {gone/missing}. {hero} could not {believe it/understand it}.
| Then, {one day/one morning/one afternoon}, something terrible happened. The {thing} {was gone/had
  disappeared}!
| {day_start}, {hero} {stopped/looked around/stood still} and {frowned/gasped}. Where was {his}
  {thing}?

lost_search
| {^who} looked {spot}, {spot} and {spot}, but it was not there.
| {^who} {searched/looked} {spot}. No {thing}. {^who} {searched/looked} {spot}. {Still
  nothing/Nothing there either}.
| First {he} looked {spot}. Then {he} looked {spot}. {^he} even looked {spot}, but all {he} found
  was {junk}.
| {^who} looked {spot} and found {junk}. {^he} looked {spot} and found {junk}. But there was no
  {thing}.
| {^who} turned {the whole {home}/everything} upside down. {^he} looked {spot} and {spot}. It was no
  use.

lost_tell
| "I cannot find my {thing}," {said/sniffed/sobbed} {hero}. "I looked {spot}, and I looked {spot}!"
| "My {thing} is gone," {said/wept/whispered} {hero}. "I have looked everywhere."
| "I lost my {thing}," {hero} {said/answered/mumbled}. "What if I never {see/find} it again?"

lost_think
| "{Do not worry/Take a deep breath/Let us sit down and think}," said {helper}. "When did you have
  it last?" {hero} {thought/closed {his} eyes and thought/scratched {his} head}. "{clue}," {he} said
  {slowly}.
| {helper} {did not laugh/nodded/listened to every word}. "Running around does not help," {helper}
  said. "Thinking does. What were you doing before?" "{clue}," said {hero}.
| "Things do not grow legs," said {helper}. "Let us walk back, step by step, in our heads." {hero}
  thought hard. "Wait! {clue}!"
| "Close your eyes and think back," said {helper}. It was quiet for a {moment/while}. "Oh!" said
  {hero}. "{clue}."

lost_found
| {Together they/So they} went to look {found}. And there it was!
| {hero} {ran/hurried/rushed} off to look {found}. There was the {thing}, {safe and sound/just
  waiting to be found}!
| They {looked/searched} {found}, and {hero} saw something familiar. It was the {thing}!
| And where was it? {^found}, of course! There lay the {thing}.

lost_alone
| Then {hero} stopped and thought back. "{clue}," {he} said to {himself}. {^he} went to look
  {found}. There it was!
| {hero} sat down and thought. "Wait! {clue}!" {^he} looked {found}, and there was the {thing}.
| {hero} was about to give up when {he} remembered something. "{clue}!" And {found}, there it was.

lost_why
| {^because}.
| {It turned out that/As it happened,/The truth was that/Of course,} {because}.
| You see, {because}.
| Now it was clear. {^because}.
| "Look," {laughed/said} {helper}. It was easy to see what had happened: {because}.

lost_end
| {hero} {held/hugged} the {thing} tight. From then on, {he} put it {back /}in {the same/a special}
  place every {night/evening}.
| {hero} {made/found} a special {shelf/corner/place/box} for the {thing}, so that it would never get
  lost again.
| {hero} {promised/decided} to take better care of the {thing}.
| And the first thing {hero} did was to {use}.

lost_moral: it is easier to find things when you stay calm, a clear head finds more than quick feet,
  asking for help is often the fastest way, things stay safe when each has a place of its own, two
  pairs of eyes see more than one, thinking back is better than running around, what is lost can be
  found if you do not give up

lost_story
| {opening} {lost_love} ¶ {lost_gone} {lost_search} {feel_sad} ¶ {ask_wrong} ¶ {lost_tell} ¶
  {lost_think} ¶ {lost_found} {lost_why} {feel_happy} ¶ {thanks} {lost_end} {cozy_end} {teach}
  {the_end}
| {opening} {lost_love} {lost_gone} {feel_sad} ¶ {lost_search} ¶ {ask_wrong} {lost_tell}
  {lost_think} {lost_found} ¶ {lost_why} {feel_happy} {lost_end} ¶ {teach}
| {opening} {lost_love} ¶ {lost_gone} {sky_line} {lost_search} ¶ {ask_wrong} {lost_tell}
  {lost_think} ¶ {lost_found} {feel_happy} {lost_why} {thanks} {cozy_end} {teach}
| {opening} {lost_love} {lost_gone} {lost_search} {lost_alone} {lost_why} {feel_happy} {teach}
"""

SHAPE = Shape("lost", tables=("lost",), helpers=("elder", "friend"))
