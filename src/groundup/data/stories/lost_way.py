"""Someone follows a pretty thing, loses the way, and gets there by asking."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
errand @child: errand | lure | turned | asked | advice | guide | arrive
- buy {a loaf of bread/a bag of flour} at the bakery | {a color} butterfly | past the fountain and
  into a narrow lane | an old man who was feeding pigeons | Listen for the bell tower, for the
  bakery is right below it | the bell rang, and {hero} walked toward it | the baker gave {him} a
  warm bun for the way home
- bring a letter to {elder} | a brass band | around three corners and over a bridge | a policewoman
  with white gloves | Ask for the street with the lime trees | {he} counted the trees until {he} saw
  the right door | {elder} read the letter out loud, and it was an invitation for both of them
- fetch milk from the farm | a flock of geese | across a stubble field and through a gap in the
  hedge | a farmer on {a color} tractor | Follow the tracks of my wheels, and you will be there |
  {he} walked in the wheel track as if it were a railway | the farmer's wife filled the can to the
  brim
- take a basket of {sweet} to {elder} | a kite without a string | down the hill and into the woods |
  a woman who was picking mushrooms | Keep the stream on your left side | {he} followed the stream
  until {he} saw smoke from the chimney | there were still enough {treats/good things} in the basket
  for both of them
- return a book to the library | a street juggler | through the market and out at the wrong gate | a
  girl who was selling lemons | Look up, for the library has a green roof | {he} stood on a bench
  and saw the green roof | the librarian let {him} choose two new books
- buy stamps at the post office | a parade of toy horses in a window | from one window to the next |
  a postman on his bicycle | I am going there myself, so come along | {he} walked beside the bicycle
  and helped to carry a parcel | the postman showed {him} how the letters are sorted
- pick up {his_parent}'s shoes from the cobbler | a cat with a bell | over a wall and across two
  yards | a boy who was cleaning windows | The cobbler hangs a wooden boot above his door | {he}
  looked at every sign until {he} saw the boot | the shoes were shiny, and the cobbler put a new
  lace in {hero}'s shoe for free
""",
    """
errand @animal: errand | lure | turned | asked | advice | guide | arrive
- bring berries to {elder} | {a color} dragonfly | around the reeds and over a sandbank | a frog on
  a lily pad | Swim with the current and not against it | {he} floated along until {he} saw
  {elder}'s door | {elder} made juice, and there was enough for two
- gather firewood before dark | the smell of wild strawberries | from one bush to the next | an old
  owl in a fir | Moss grows on the north side, and your home lies to the north | {he} felt each
  trunk for moss and went on, tree by tree | everyone in the den cheered when the fire was lit
- fetch water from the spring | a string of ducklings | along a path that {he} had never seen | a
  mole who had just come up for air | Put your ear to the ground and listen for the water | {he}
  heard it bubble and walked toward the sound | the water was as cold and clear as glass
- carry a message to the beavers | the music of the crickets | into the high grass, where all sides
  look the same | a grasshopper on a stalk | Climb on this stone and look for the big heap of sticks
  | {he} saw the dam shining in the sun | the beavers read the message, and it said, "Please give
  the messenger a fish pie"
- collect reeds for a new roof | a rainbow | over the hill and down the other side | a heron on one
  leg | The rainbow has no end, but the marsh begins right behind me | {he} went around the heron
  and found the tallest reeds of all | the new roof kept out the rain that very night
- bring medicine to {his} grandmother | a rolling chestnut | down and down into a dark valley | a
  doe with her fawn | Go up until you can see the lake, and then turn to the sun | {he} climbed up
  and saw the lake | grandmother drank the medicine and felt better at once
- take the first honey to the feast | a white feather in the wind | through the ferns and across two
  streams | a snail who was out for a walk | Follow my silver trail back, for I came from there |
  {he} walked along the silver trail in the moonlight | the feast had only just begun
""",
)

RULES = """
way_send
| {day_start}, {his_parent} {asked/sent} {hero} to {errand}. "{Go straight there/Stay on the path/Do
  not dawdle}," {phe} said.
| {day_start}, {hero} was allowed to {errand}, all alone for the first time. {hero} felt very
  {big/grown up/important}.
| "Can you {errand}?" asked {parent}. "{Of course/Yes, I can}!" said {hero} and {set off/hurried
  out/skipped away}.

way_lure
| On the way, {he} saw {lure}. {^he} followed along, {turned}.
| {hero} walked straight on until {he} noticed {lure}. How {pretty/strange/wonderful}! {^he}
  followed along, {turned}.
| {sky_line} Then {lure} caught {his} {eye/attention}, and {hero} forgot everything and followed
  along, {turned}.

way_lost
| When {he} stopped, nothing looked familiar. "Where am I?" {whispered/asked} {hero}. {feel_scared}
| Then {he} looked around. {^he} did not know this place{ at all/}. {hero} was lost! {feel_scared}
| {hero} turned around once, and twice. Every way looked {the same/wrong}. {feel_sad}

way_ask
| {hero} {wanted to cry/almost began to run}. But then {he} remembered what {parent} always said:
  "If you are lost, stay calm and ask." Nearby was {asked}. "Excuse me, I am lost," said {hero}.
| {^who} {wiped {his} eyes/took a deep breath} and looked for someone to ask. There was {asked}.
  "Can you help me, please?" asked {hero}.
| "Are you lost?" said a {kind/friendly/deep/soft} voice. It was {asked}. {hero} {nodded/told the
  whole story}.

way_advice
| "That is {easy/not so far}," was the answer. "{advice}."
| "Do not worry. {advice}."
| "Well, well. {advice}. {You cannot miss it/You will be fine}."

way_guide
| So {guide}.
| {hero} {said thank you/gave thanks/bowed and said thanks} and did just that. {{^guide}/{^soon},
  {guide}}.
| It worked! {{^guide}/{^soon}, {guide}}.

way_arrive
| And in the end, {arrive}.
| {hero} was late, but {he} had made it. {{^arrive}/{^soon}, {arrive}}.
| "There you are!" someone called. {{^arrive}/{^soon}, {arrive}}.

way_home
| At home, {parent} {hugged {him} tight/had already been looking out of the door}. "What took you so
  long?" "I have so much to tell you," said {hero}.
| {hero} {ran/walked} straight home, and this time {he} did not follow anything at all.
| When {he} got home, {hero} drew a map of the way, with a big arrow on it.
| {walk_home}

way_moral: it is wise to ask when you do not know the way, staying calm is the first step home, it
  is good to finish what you set out to do, those who ask politely are helped, a pretty thing can
  lead you far away from your path, there are kind helpers almost everywhere

way_story
| {opening} ¶ {way_send} {way_lure} ¶ {way_lost} ¶ {way_ask} {way_advice} ¶ {way_guide} {way_arrive}
  ¶ {way_home} {teach} {the_end}
| {opening} {way_send} ¶ {way_lure} {way_lost} ¶ {way_ask} ¶ {way_advice} {way_guide} {way_arrive}
  {way_home} ¶ {teach}
| {opening} {way_send} {way_lure} {way_lost} {way_ask} {way_advice} {way_guide} {way_arrive} {teach}
"""

SHAPE = Shape("way", tables=("errand",))
