"""Two friends quarrel over something small, find out that alone it does not work, and make up."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
quarrel: game | cause | hero_says | friend_says | alone | repair
- play pirates | both of them wanted to be the captain | I was the captain first | You are always
  the captain | a captain without a crew could not even {lift the anchor/raise the sail} | they took
  turns, and the one who was not the captain was the lookout
- paint a picture | both of them wanted the {color} paint | I had it first | You never share | one
  picture had only a sky, and the other one had only a sea | they put the two pictures together, and
  the sky had a sea under it
- pick berries | each thought that the other had eaten more | You ate more than I did | That is not
  true | the {best/highest} berries hung too high for one alone | one of them bent the branch down
  and the other one picked
- play on the swing | both of them wanted to go first | I saw it first | I was here before you |
  without a push the swing hardly moved | they counted to twenty and then changed places
- build a hut | one wanted it round and the other wanted it square | Round is better | Square is
  better | half a hut fell down as soon as the wind blew | they built a hut with one round room and
  one square room
- sing a duet | each said that the other sang too loudly | You sing like a {crow/frog/rusty gate} |
  And you cannot keep time | the song sounded thin and lonely with only one voice | one of them sang
  high and the other one sang low
- follow a treasure map | one wanted to go left and the other wanted to go right | It is left, I am
  sure | You are holding it upside down | both of them went in a circle and ended at the same puddle
  | they turned the map around and read it together
- bake a cake | each of them wanted to stir | You are spilling it | You are too slow | nobody could
  hold the bowl and stir at the same time | one of them held the bowl, the other one stirred, and
  then they swapped
- race little boats | each said that the other had started too early | You cheated | You are just a
  bad loser | a race with only one boat had no winner | they asked {elder} to count to three for
  them
- dig a big hole | both of them wanted the {color} shovel | It is my turn | Your turn never ends |
  one shovel alone dug a hole that was only good for a worm | one of them dug while the other one
  carried the sand away
- play ball | {friend} threw the ball over the hedge | You did that on purpose | You should have
  caught it | a ball that nobody throws back is no fun at all | they looked for the ball together
  and made a rule about the hedge
- play shop | both of them wanted to be the shopkeeper | The shop was my idea | You cannot even
  count to ten | a shop without a customer does not sell a single {pebble/apple/button} | they
  swapped the apron after every sale
- put on a play | both of them wanted to be the dragon | I can roar better | Your roar is tiny | a
  play with one dragon and no knight was over very fast | they made a dragon with two heads, and
  both heads roared
- build a tower | each wanted to put on the last stone | It was my idea | I did all the work |
  alone, neither of them could reach the top | {hero} climbed on a stump, {friend} passed up the
  stone, and they let go together
""",
)

RULES = """
quarrel_game
| {day_start}, {hero} and {friend} {wanted/went out/met} to {game}. At first it was {fun/going
  well}, but then {cause}.
| {day_start}, the two friends {decided/planned/wanted} to {game}. {sky_line} Everything was fine
  until {cause}.
| {day_start}, they went to {place} to {game}. But soon there was trouble: {cause}.
| "Let us {game}!" said {friend} {day_lower}. "{Yes/Oh yes}, let us!" said {hero}. But before long,
  {cause}.

day_lower: one morning, one afternoon, one day, after lunch, on the way home

quarrel_words
| "{hero_says}!" {shouted/cried/said} {hero}. "{friend_says}!" {shouted/yelled/answered} {friend}.
| "{hero_says}," said {hero}{ crossly/, and {his} face turned red/}. "{friend_says}," snapped
  {friend}.
| {hero} stamped {his} foot. "{hero_says}!" {friend} {crossed {fhis} arms/turned away/made a face}.
  "{friend_says}!"

quarrel_part
| "Then I will do it alone!" {said/shouted} {hero}. "{So will I/Me too/Fine}!" {said/shouted}
  {friend}. And they {walked off/marched away/turned} in different directions.
| They {shouted/argued} until {they were hoarse/the birds flew away/nobody was listening}. Then
  {friend} {went home/ran off/stomped away}, and {hero} was alone.
| {hero} turned {his} back on {friend}. {friend} turned {fhis} back on {hero}. Nobody said {a
  word/anything} for a long, long time.

quarrel_alone
| {^alone}. {hero} {kicked a stone/sat down and sighed/tried again, but it was no use}.
| At first {hero} {felt proud/was glad to be alone}. But {alone}. And it was {so /very /}quiet.
| {hero} tried to {game} alone. It was not {the same/much fun}, for {alone}.

quarrel_think
| "{You look lonely/All alone today/Where is {friend}}?" {asked/said} {his_elder}. {hero} told
  {ehim} {everything/what had happened}. "Hmm," said {elder}. "And what do you {want more/miss
  more}: to be right, or {friend}?"
| {hero} {thought of/remembered} all the {good days/funny things/adventures} they had shared. {^he}
  missed {friend}{'s laugh/ already/ very much}.
| {^his_elder} {came by/had heard it all} and said, "It takes two to quarrel, but one is enough to
  say sorry."
| After a while, being {angry} felt {boring/silly/heavy}. What had it been about? It seemed so small
  now.

quarrel_sorry
| {hero} {went/walked/ran} to find {friend}. At the very same moment, {friend} came around the
  {corner/bend}. "I am sorry," they both said at once, and they had to laugh.
| "I am sorry I {shouted/was so stubborn/was unfair}," said {hero}. {friend} {looked
  up/sniffed/smiled a little}. "I am sorry too," {fhe} said.
| {hero} picked {a flower} and {held it out/gave it} to {friend}. "I was {wrong/unkind/silly}," {he}
  said. "Can we be friends again?" "We never stopped," said {friend}.
| It was hard to say, but {hero} said it. "I am sorry." {friend} {hugged {him}/smiled/nodded}. "Me
  too. Let us start again."

quarrel_repair
| This time, {repair}.
| And do you know what they did? {^repair}.
| "I have an idea," said {friend}. So {repair}, and it was the best game they had ever played.
| They thought about it together. In the end, {repair}.

quarrel_end
| {Soon/Before long}, they were {laughing/giggling} so hard that {they fell over/they got the
  hiccups/their bellies hurt}.
| They {played/stayed out} until the {stars came out/sun went down/frogs began to sing}.
| "{Same time/Shall we play again} tomorrow?" asked {friend}. "{Of course/Always/Yes}," said {hero}.
| {cozy_end}

quarrel_moral: saying sorry is not hard once you begin, a friend is more important than being right,
  taking turns makes a game twice as good, a quarrel is over as soon as one of the two says sorry,
  things work better when you do them together, angry words are soon said but it takes longer to
  mend them, it is no fun to win and be alone

quarrel_story
| {opening} {friend_intro} ¶ {quarrel_game} {quarrel_words} ¶ {quarrel_part} ¶ {quarrel_alone}
  {quarrel_think} ¶ {quarrel_sorry} ¶ {quarrel_repair} {quarrel_end} {teach} {the_end}
| {opening} {friend_intro} {quarrel_game} ¶ {quarrel_words} ¶ {quarrel_part} {quarrel_alone} ¶
  {quarrel_sorry} {quarrel_repair} ¶ {teach}
| {hero} and {friend} were {best/good} friends, but one day they had a quarrel. {quarrel_game}
  {quarrel_words} {quarrel_part} ¶ {quarrel_alone} {quarrel_think} ¶ {quarrel_sorry}
  {quarrel_repair} {quarrel_end} ¶ {teach}
| {hero} and {friend} lived {near}. {quarrel_game} {quarrel_words} {quarrel_alone} {quarrel_sorry}
  {quarrel_repair} {teach}
"""

SHAPE = Shape("quarrel", tables=("quarrel",))
