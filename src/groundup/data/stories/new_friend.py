"""A newcomer is alone; someone dares to come closer, and what they share makes them friends."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
newcomer: origin | odd | lonely | gossip | move | shared | later
- from far across the sea | spoke with strange, soft words | drew pictures in the dust with a stick
  | Nobody understands {fhim} | sat down and drew a second picture next to the first one | they
  could tell each other everything with pictures | their drawings covered the whole {yard/clearing}
- from the high mountains | wore a thick coat, even in the sun | sat on a wall and looked at the
  clouds | That one is always cold | brought {drink} in two cups and sat down too | they both knew
  the names of all the clouds | they lay on their backs every day and found animals in the sky
- from the big city | did not know what a {beetle/turnip/tadpole} was | walked up and down at the
  edge of the field | That one is afraid of mud | held out a hand and showed {fhim} a
  {beetle/ladybug/snail} | {friend} knew a hundred riddles, and {hero} knew a hundred bugs | they
  traded one riddle for one bug, until each knew all of both
- from the other side of the forest | never said a word | hummed a tune when nobody was near | That
  one thinks {fhe} is too good for us | hummed the second half of the tune | it was the same song
  that {hero}'s grandmother used to sing | they had a song for every walk
- from a house on wheels | had lived in twenty different places | kept a packed bag under {fhis} bed
  | That one will leave soon anyway | asked to see what was in the bag | the bag was full of stones,
  one from each place, and {hero} had a stone collection too | they put all the stones in one big
  row and told their stories
- from the cold north | had never seen {a butterfly/a peach/a palm tree} | built little towers of
  stones that nobody looked at | Strange towers, strange {fchild} | put one more stone on top of the
  tower, very carefully | neither of them could stop before the tower fell | they built the tallest
  tower that anyone had ever seen
- from a lonely island | was used to being alone | threw a ball against the wall again and again |
  Leave {fhim} alone, that is what {fhe} wants | stood on the other side and threw the ball back |
  they could throw it a hundred times without dropping it | they made up a game that everyone wanted
  to learn
- from the village behind the hill | had a limp and walked slowly | watched the others run and race
  | Too slow for our games | walked just as slowly beside {fhim} | slow walkers find the most
  wonderful things | their pockets were always full of treasures
- from the desert | laughed out loud at every puddle | caught raindrops in a cup, all alone | Only
  ducks are that fond of water | came out without a coat and held up a second cup | each drop made a
  different note in the cups | on rainy days there was a concert of cups
- from a busy harbor | told stories that nobody believed | talked to the {pigeons/gulls/sparrows} |
  All lies | sat down and asked what had happened next | {friend} knew how to tell stories, and
  {hero} knew how to listen | every evening there was a new chapter
""",
)

RULES = """
new_arrive
| {day_start}, a new {fchild} came to live {near}. {^fhis} name was {friend}, and {fhe} came
  {origin}. {^fhe} {odd}.
| {day_start}, everyone was talking about the newcomer. {friend} had come {origin}. {^fhe} was {a
  trait} {fchild} who {odd}.
| Then {a fchild} named {friend} came {origin}. {friend} {odd}, and that seemed {strange/odd/funny}
  to the others.

new_alone
| At first nobody {played/talked} with {fhim}. {friend} {lonely}. "{gossip}," {somebody/one of the
  others} {said/whispered}.
| "{gossip}," the others {said/whispered}, and they went on playing without {fhim}. {friend}
  {lonely}.
| {friend} was always alone. {^fhe} {lonely}. {hero} saw it {on Monday, on Tuesday and on
  Wednesday/every day/from a distance}.

new_think
| {hero} {knew/remembered} how it felt to be {new/alone/left out}. {^his} {heart/belly} {hurt/felt
  heavy} when {he} looked over.
| "{Why does nobody talk to {friend}/Maybe {friend} is just shy}?" {hero} asked {his_parent}. "Maybe
  {friend} is waiting for somebody to be first," said {parent}.
| {hero} was {shy too/a little shy}. What if {friend} did not {like/want} {him}? {^he} thought about
  it {all night/all through lunch}.

new_move
| {The next day/After lunch/At last}, {hero} {took heart/gathered {his} courage}. {^who} {move}.
| {hero} {walked/went} over, step by step. {^his} {knees/ears} felt {hot/wobbly}. Then {he} {move}.
| Without a word, {hero} {move}.

new_smile
| {friend} looked up in surprise. And then {fhe} smiled{, and it was a very nice smile/}.
| For a moment, {friend} did not {move/say anything}. Then {fhe} began to {smile/laugh}.
| "I am {hero}," {said/whispered} {hero}. "I am {friend}," {fhe} {said/whispered} back.

new_share
| They soon found out something: {shared}.
| And what a surprise! {^shared}.
| Before {the day was over/the sun went down}, they knew that {shared}.

new_later
| From then on, {later}.
| {Soon/After a few days}, the others came closer to look. "{Can we join in/What are you doing/May
  we play too}?" they asked. And {later}.
| {{^later}/{^soon}, {later}}. And when the next newcomer came, {friend} was the first to {say
  hello/go over}.

new_thanks
| "You were the first one who {came over/talked to me}," said {friend}. "And you were worth it,"
  said {hero}.
| "I was so lonely," said {friend} one day. "Now I {hardly remember it/have forgotten what it was
  like}."
| {feel_happy}
|

new_moral: a friend can be found by taking the first step, someone who seems strange may only be
  shy, a smile is a bridge that anyone can build, it is worth finding out what others love, everyone
  was new once, you should meet someone before you decide what they are like

new_story
| {opening} ¶ {new_arrive} {new_alone} ¶ {new_think} ¶ {new_move} {new_smile} ¶ {new_share}
  {new_later} ¶ {new_thanks} {teach} {the_end}
| {opening} {new_arrive} ¶ {new_alone} {new_think} ¶ {new_move} ¶ {new_smile} {new_share}
  {new_thanks} {new_later} ¶ {teach}
| {opening} {new_arrive} {new_alone} {new_move} {new_share} {new_later} {teach}
"""

SHAPE = Shape("new", tables=("newcomer",))
