"""Someone makes a gift that fits, spoils it a little and saves it with an idea."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
gift: likes | gift | from_what | work | slip | rescue | use
- to watch the birds | bird house | old {boards/bark} and a few pegs | cut a round door and put on a
  roof | the roof came out crooked | {he} called it a hat and painted it {color} | the first bird
  moved in the very next day
- to drink tea in the evening | teacup | a lump of clay from the river bank | shaped it and let it
  dry in the sun | the handle broke off | {he} made two small handles like ears | {elder} drank from
  it and said that tea had never tasted better
- to sit by the fire | scarf | leftover wool in {three/six/nine} colors | knitted row after row |
  there were holes in it | {he} sewed a little flower over each hole | {elder} wore it on all the
  cold days and even on some warm ones
- to sing old songs | song book | paper, ribbon and a pen | wrote down every song {he} knew and drew
  a picture for each one | a big blot of ink fell on the best page | {he} turned the blot into a
  whale | they sang it from the first page to the last
- to look at the stars | star lamp | an old can and a nail | pricked a hole for every star | one
  hole was much too big | {he} said that it was the moon | in the dark, the whole ceiling was full
  of stars
- to work in the garden | set of name stones | smooth stones and {color} paint | painted a plant on
  each stone | rain washed off half of the paint | {he} painted them again and rubbed them with wax
  | nobody ever mixed up the carrots and the parsnips again
- to tell about the old days | memory box | a wooden box, shells and glue | asked everyone for
  something from long ago | the lid would not close any more | {he} left it open and called it a
  treasure chest | {elder} took out one thing after another and told a story about each
- to bake bread | wooden spoon | a branch of {a tree} | carved and smoothed it for a week | the
  spoon had a hole in the middle | {he} said that it was for letting the lumps fall through |
  {elder} stirred every dough with it, and there was never a lump
- to go for long walks | walking stick | a straight branch of {a tree} | peeled off the bark in a
  pretty pattern | the knife slipped and cut a notch too deep | {he} made a notch for each of
  {elder}'s birthdays | {elder} went twice as far with it as before
- to smell the flowers | bag of dried petals | petals of {a flower}, {a flower} and {a flower} |
  dried them on a cloth in the sun | the wind blew half of them away | {he} added
  {mint/lavender/thyme} and a piece of orange peel | the whole room smelled of summer
- to play games in the evening | board game | a flat board and {pebbles/beans/acorns} | drew a
  winding path with traps and bridges | one field got smeared | {he} made it a swamp where you have
  to wait for one turn | they played until it was much too late
- to sleep in the afternoon | pillow | soft {wool/down/moss} and some cloth | sewed it with tiny
  stitches | one side came out longer than the other | {he} gave the long side a tail and two ears |
  {elder} slept on the pillow cat every day after lunch
""",
)

RULES = """
gift_day
| Soon it would be the birthday of {his_elder}. {hero} wanted to give {ehim} something
  {special/wonderful/really good}. But {he} had {no money/only one small coin/nothing to buy it
  with}.
| {day_start}, {hero} remembered that the birthday of {his_elder} was {near/only a week away}. {^he}
  looked into {his} {pocket/box/jar}. It was {empty/nearly empty}.
| {hero} loved {his_elder}, and tomorrow week was {ehis} birthday. What could {he} give {ehim}
  without a single coin?

gift_think
| {hero} thought and thought. "What does {elder} like {best/most}?" asked {his} friend {friend}.
  "{^ehe} likes {likes}," said {hero}. And then {he} knew: {he} would make {a gift}!
| What did {elder} like? {^ehe} liked {likes}. {hero} {sat up/clapped/jumped up}. "I will make {a
  gift}!"
| "A gift does not have to be bought," said {his_parent}. "What does {elder} like?" "{^ehe} likes
  {likes}," said {hero}. So {he} decided to make {a gift}.

gift_work
| {hero} {looked for/collected/got} {from_what}. Then {he} {work}. It was {harder than {he} had
  thought/a lot of work/a secret}.
| All {he} needed was {from_what}. Every {day/evening}, behind a closed door, {hero} {work}.
| With {from_what}, {hero} {set to work/began}. {^who} {work}{ and hummed while {he} did it/}.

gift_slip
| But {then/on the last evening/just before it was done}, something went wrong: {slip}. {feel_sad}
| Then, oh dear, {slip}! "Now it is ugly," {said/sobbed/thought} {hero}.
| Everything went well until {slip}. {hero} {almost threw it away/could have cried}.

gift_rescue
| "Do not throw it away," said {his} friend {friend}. "Look at it from the other side." {hero}
  {looked/thought/turned it around}. And then {rescue}.
| {hero} looked at it for a long time. Then {he} {had an idea/began to grin}: {rescue}.
| "A mistake is only the beginning of an idea," {his_parent} always said. So {rescue}.

gift_give
| The big day came. {hero} {held out/brought} the {gift} with {red cheeks/shaking hands/a thumping
  heart}. "I made it myself," {he} {said/whispered}.
| On {elder}'s birthday, there were many {parcels/big boxes}. {hero}'s was the smallest. {elder}
  opened it last and took out the {gift}.
| "This is for you," said {hero}. {elder} opened it {slowly/very slowly/with great care}. It was {a
  gift}!

gift_joy
| {elder} was quiet for a moment, and {ehis} eyes {shone/were wet}. "Nobody has ever given me
  anything so {lovely/beautiful/dear}," {ehe} said.
| "You made this? For me?" {elder} {hugged/kissed} {hero}. "It is the {best/finest} {gift} in the
  world."
| {elder} {laughed/smiled} and {turned it over in {ehis} hands/showed it to everyone}. "And {this
  part/the odd bit} is the best of all," {ehe} said.

gift_use
| And {use}.
| It was not just for looks: {use}.
| {hero} was {happy}, and {use}.

gift_moral: a gift from the heart is worth more than gold, time and care are the best presents, a
  mistake can be the best part, you do not need money to make someone happy, the best gifts fit the
  one who gets them, something made by hand carries love in it

gift_story
| {opening} ¶ {gift_day} {gift_think} ¶ {gift_work} ¶ {gift_slip} {gift_rescue} ¶ {gift_give}
  {gift_joy} ¶ {gift_use} {teach} {the_end}
| {opening} {gift_day} ¶ {gift_think} {gift_work} ¶ {gift_slip} ¶ {gift_rescue} {gift_give} ¶
  {gift_joy} {gift_use} {cozy_end} {teach}
| {opening} {gift_day} {gift_think} {gift_work} {gift_slip} {gift_rescue} {gift_give} {gift_use}
  {teach}
"""

SHAPE = Shape("gift", tables=("gift",))
