"""Someone learns a skill: it fails, a tip answers the failure, and practice does the rest."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
skill @child: skill | fail | again | tip | practice | success
- ride a bicycle | fell into the hedge | went three feet and fell on the grass | Look at where you
  want to go and not at your feet | rode from the gate to the {lamp post/mailbox} and back | rolled
  all the way down the lane without falling once
- swim | sank like a stone | swallowed a lot of water | Spread your arms like a frog and breathe out
  slowly | floated on {his} back and counted to ten | swam from one side of the pool to the other
- whistle | only blew air | spat all over {his} chin | Make your lips small and wet, as if you were
  kissing a marble | blew and blew on the way to school and back | whistled so well that a blackbird
  answered
- tie shoelaces | made a knot that nobody could open | tripped over the laces | Make one ear of a
  rabbit, then a second one, and let the ears hug | tied a ribbon to a chair and opened it a hundred
  times | tied two neat bows all by {himself}
- bake bread | baked a loaf as hard as a brick | made dough that stuck to the ceiling | Give the
  dough time, for it cannot be hurried | let the dough sleep in a warm corner under a cloth | took a
  golden loaf out of the oven, and the kitchen smelled wonderful
- play the violin | made a sound like a sad cat | scared the pigeons off the roof | Let the bow be
  as light as a feather | played one single note until it was soft and round | played a whole song,
  and even the pigeons came back
- read | saw only little black ants on the page | mixed up b and d | Put your finger under each word
  and say it slowly | read the labels on all the jars in the kitchen | read a whole story to
  {his_parent} at bedtime
- skate | sat down hard on the ice | slid into a heap of snow | Bend your knees and push out to the
  side | went round and round, holding on to a chair | skated a big figure eight
- juggle | dropped all three balls | hit {himself} on the nose | Begin with one ball, then two, and
  only then three | threw one ball from hand to hand until it was easy | kept three balls in the air
  and bowed
- draw a horse | drew something that looked like a table | drew a table with a tail | First look at
  a real horse for as long as it takes to eat an apple | went to the {farm/stable} every day with a
  pencil | drew a horse that seemed ready to gallop off the paper
- knit | made a knot the size of a potato | dropped every second stitch | Say the little rhyme with
  each stitch: in, around, out and off | knitted one row every evening after supper | wore a scarf
  that was only a little bit crooked
- dive | landed flat on {his} belly | held {his} nose and jumped feet first instead | Point your
  fingers at the water and follow them | practiced from the lowest step of the pool | dived in with
  hardly a splash
- do a cartwheel | landed on {his} bottom | rolled into the flower bed | Hands first, then kick your
  legs up to the sky | practiced on the soft lawn until it was dark | turned three cartwheels in a
  row
- tell the time | came home an hour too late | said that it was half past cabbage | The short hand
  tells the hour, and the long hand tells the minutes | looked at the tower clock every time it rang
  | told the whole family when it was time for dinner
""",
    """
skill @animal: skill | fail | again | tip | practice | success
- whistle | only blew air | frightened a worm | Make your mouth as small as a blueberry | blew and
  blew until the moon was high | whistled so well that a blackbird answered
- build a dam | watched the water carry off every stick | got soaked from nose to tail | Put the big
  stones down first, and then the sticks | carried one stone after another, from the small to the
  big | made a dam so strong that a little lake grew behind it
- climb the tall pine | slid down with a bump | got stuck on the lowest branch | Never let go before
  you have a new hold | climbed one branch higher each day | sat at the very top and saw the whole
  forest
- crack a nut | broke a stone instead of the nut | hit {his} own toe | Look for the seam and tap it
  there | tapped and listened, tapped and listened | cracked a whole bowl of nuts for the winter
  party
- swim | sank like a stone | came up with a lily pad on {his} head | Spread your toes and breathe
  out slowly | floated in the shallow water and counted to ten | swam to the other side and back
- weave a basket | made something that looked like an old nest | lost all the berries through the
  holes | Over one, under one, and pull it tight each time | wove one ring of grass every evening |
  carried home a basket that did not lose a single berry
- jump across the stream | landed in the middle with a splash | stopped at the edge because {his}
  legs shook | Look at the far bank and not at the water | jumped over a puddle, then a ditch, then
  a fallen tree | landed on the other side with dry feet
- sing in the choir | croaked so loudly that everyone stopped | came in too early | Listen first,
  and then sing along softly | hummed with the wind every morning | sang a solo, and the whole
  forest was still
- walk without a sound | stepped on every dry twig | slipped on a wet leaf | Put down your heel as
  if the ground were asleep | walked to the pond and back without waking the ducks | came so close
  to the deer that it only looked up and smiled
- find mushrooms | brought home a basket of pebbles | sat on the only good one | Look under the
  birch trees, where the moss is deep | learned a new kind of mushroom each week | found so many
  that there was soup for everyone
- light a lantern with fireflies | chased them all away | fell into the reeds | Sit still and let
  them come to you | sat in the grass without moving a whisker | had a lantern that glowed all
  night, and let the fireflies go at dawn
""",
)

RULES = """
skill_want
| {hero} wanted to learn how to {skill}. All {his} friends could do it {already/so well}.
| More than anything, {hero} wanted to {skill}. {friend} could do it, and it looked so easy.
| {day_start}, {hero} watched {friend} and {said/thought}, "I want to {skill} too!"
| There was one thing that {hero} could not do {yet/at all}. {^he} could not {skill}.

skill_try
| {^who} tried {it/right away/at once}, but {he} {fail}. {^he} tried again and {again}.
| {day_start}, {hero} {gave it a try/tried for the first time}. {^who} {fail}. The second time, {he}
  {again}.
| The first try did not go well: {hero} {fail}. The next one was {no better/even worse}: {he}
  {again}.

skill_quit
| "I will never {learn it/be able to do it}!" {cried/groaned/said} {hero}. {feel_sad}
| "It is too hard," {said/sighed} {hero}. "I give up." {feel_sad}
| Some of the others {laughed/giggled}. {hero} wanted to {hide/go home/disappear}. "I am no good at
  this," {he} said.
| "Everybody can do it, only I cannot," {hero} {sniffed/mumbled/thought}.

skill_coach
| {^his_elder} had been watching. "You {are not bad at it/are almost there/only need to know one
  thing}," {ehe} said. "{tip}."
| {^his_elder} sat down next to {him}. "I failed {a hundred/many} times before I could do it," {ehe}
  said. "Here is the secret. {tip}."
| "You cannot do it yet," said {his_elder}, "but yet is a {small/short} word. {tip}."
| "Shall I tell you what helped me?" asked {his_elder}. {hero} nodded. "{tip}," said {elder}.

skill_work
| {hero} {tried it/thought about it}. It {was/felt} a little better. So {he} practiced. {^who}
  {practice}.
| {From then on/In the days that followed}, {hero} {practice}. {Sometimes/On some days} it went
  well, and {sometimes/on other days} it did not.
| Day after day, {hero} {practice}. {^who} {made mistakes/got tired/wanted to stop}, but {he} {did
  not give up/kept going/tried once more}.

skill_done
| And then, {one fine day/one Sunday/on {a weather} morning/at last}, it happened. {hero} {success}!
| After {two weeks/many days/a month/a long time}, {hero} {success}.
| On {the last day of the month/{his} birthday/{a weather} afternoon}, everyone came to watch.
  {hero} took a deep breath. {^who} {success}!

skill_cheer
| "{Bravo/Hooray/Look at you}!" {called/cried/cheered} {elder}. {feel_happy}
| {friend} clapped the loudest. "{Can you teach me?/How did you do that?/That was wonderful!}" {fhe}
  {said/cried}.
| "I did it!" {shouted/cried/laughed} {hero}. "I really did it!"
| {feel_happy} {elder} {winked/smiled/nodded} at {him}.

skill_pass
| {Later/Some time later}, {a tiny} {cousin/neighbor/friend} asked {hero} for help. {hero} smiled
  and said, "{tip}."
| {Now/Today} {hero} {teaches the little ones/helps others to learn it}. "{tip}," {he} always says.
|
|

skill_moral: practice makes hard things easy, nobody is good at something new on the first day,
  falling down is part of learning, good advice and patience can do almost anything, you only fail
  when you stop trying, everyone learns at their own speed, mistakes are how we learn

skill_story
| {opening} {skill_want} ¶ {skill_try} {skill_quit} ¶ {skill_coach} ¶ {skill_work} {skill_done} ¶
  {skill_cheer} {skill_pass} ¶ {teach} {the_end}
| {opening} ¶ {skill_want} {skill_try} ¶ {skill_quit} ¶ {skill_coach} {skill_work} ¶ {skill_done}
  {skill_cheer} ¶ {cozy_end} {teach}
| {opening} {skill_want} {skill_try} {skill_coach} {skill_work} {skill_done} {teach}
"""

SHAPE = Shape("skill", tables=("skill",))
