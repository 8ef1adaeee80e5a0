"""Something breaks in secret and is hidden; hiding makes it worse, telling the truth mends it."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
truth @child: object | rule | deed | damage | hide | worse | amends
- blue vase | not to play ball in the house | threw {his} ball just once, as high as the lamp | the
  vase fell down and broke | pushed the pieces under the rug | {parent} almost stepped on the sharp
  pieces | they glued the vase, and {hero} picked fresh flowers for it
- new curtain | not to paint near the window | shook the brush, only to see what would happen |
  there was a big {color} spot on the curtain | turned the curtain around | the sun shone through
  and showed the spot to everyone | they painted more spots until it looked like a meadow
- chocolate cake | not to touch the cake before the party | took one tiny taste, and then another |
  there was a hole in the cake as big as a fist | put a cup over the hole | {parent} wanted to put
  candles on it and saw the cup | they filled the hole with berries and called it a volcano cake
- garden hose | to turn off the tap after watering | ran off to play and left the water on | the
  bean rows were under water | blamed the rain | the sky had been blue all week | they dug a little
  ditch and planted new beans
- best teapot | not to carry the teapot alone | wanted to surprise everyone with tea | the spout
  broke off | put the teapot at the back of the shelf | the tea ran all over the table when {parent}
  poured it | {hero} saved {his} coins, and they chose a new teapot at the market
- reading glasses | not to play with the glasses | put them on and pretended to be a professor | one
  of the glass rounds popped out | dropped them behind the sofa | {parent} could not read the
  bedtime story | they took the glasses to the shop, and {hero} carried them in both hands
- picture frame | not to run in the hallway | slid along the floor in {his} socks | the frame fell
  off the wall | hung a coat over the empty place | {parent} took the coat to go out | they made a
  new frame out of twigs and shells
- neighbor's window | not to throw stones | wanted to hit just one apple | the neighbor's window
  cracked | ran home and hid under the bed | the neighbor thought that {friend} had done it | {hero}
  swept up the glass and raked the neighbor's leaves for a week
- goldfish bowl | not to feed the fish alone | gave the fish some of {his} bread because it looked
  hungry | the water turned cloudy and gray | put a towel over the bowl | the fish came up and
  gasped for air | they changed the water at once, and the fish was well again
- library book | to keep books away from the bath | took it along because the story was so good |
  the book fell into the water and swelled up like a sponge | put it back on the shelf as if nothing
  had happened | all the other books got wet spots too | {hero} told the librarian, and helped her
  to cover books for an afternoon
""",
    """
truth @animal: object | rule | deed | damage | hide | worse | amends
- winter store of nuts | not to play near the store | jumped on the pile just once | all the nuts
  rolled down the hill | covered the empty place with leaves | {parent} went to fetch supper and
  found only leaves | they picked up every nut and counted them together
- honey jar | not to eat the honey before the feast | took one tiny lick, and then another | the jar
  was half empty | filled it up with pond water | {parent} poured it on the pancakes, and it tasted
  of frogs | {hero} asked the bees politely and carried home a new comb
- woven door | not to swing on the door | swung on it, only three times | the door came off its
  hinge of grass | leaned it in its place and tiptoed off | it fell on {parent}'s toes | they wove a
  new hinge, twice as thick
- moss bed | not to come in with muddy feet | was in a hurry and forgot to wash | there were muddy
  tracks all over the bed | turned the moss upside down | at night it was cold and wet on that side
  | {hero} gathered soft, dry moss and made the bed for everyone
- clay bowl | not to carry the bowl alone | wanted to show it to {friend} | the bowl slipped and
  broke | buried the pieces under a root | {parent} looked for it all day and was late for the feast
  | they dug up some clay and made a bowl with {hero}'s footprint on it
- beaver's dam | not to pull sticks out of the dam | pulled out just one, to use it as a sword | the
  water rushed through the hole | whistled and walked away | the mouse family downstream got wet
  beds | {hero} carried sticks all day, and helped the mice to dry their beds
- berry pie | to watch the pie and not to taste it | tasted it to see if it was warm | there was no
  middle left in the pie | put a big leaf on top | {parent} gave the pie to {elder}, who found only
  crust under the leaf | {hero} picked a full basket of berries, and they baked a new one
- nest of eggs | to keep quiet near the nest | beat {his} drum just a little | mother bird was so
  frightened that she flew off | hid the drum and ran | the eggs began to get cold | {hero} kept
  them warm under a blanket of down until she came back
""",
)

RULES = """
truth_rule
| "Remember {rule}," {his_parent} always said. Usually {hero} remembered.
| There was {one/only one} rule about the {object}: {rule}. {hero} knew {it/that} very well.
| {day_start}, {parent} went out for {a little while/a moment}. "Be good," {phe} said, "and remember
  {rule}."

truth_deed
| But {that day/this time/then}, {hero} {deed}. {Crash/Oh no/Oh dear}! A moment later, {damage}.
| {hero} meant no harm. {^who} {deed}. {Suddenly/All at once}, {damage}.
| For a while {he} was good. Then {he} {deed}, and {damage}.

truth_hide
| {hero} looked {left and right/around}. Nobody had seen it. {^quickly}, {he} {hide}.
| "If nobody knows, then nobody will be {angry}," thought {hero}. {^who} {hide}.
| {feel_scared} What would {parent} say? {hero} {hide}.

truth_ask
| "What happened to the {object}?" asked {parent} {at supper/later/that evening}. {hero} shook {his}
  head. "{Not me/I do not know}," {he} said.
| "How was your day?" asked {parent}. "{Fine/The same as always}," said {hero} and looked at {the
  floor/{his} feet}.
| When {parent} came back, {phe} asked, "Is everything all right?" "Yes," said {hero} very
  {fast/quietly}.

truth_worse
| But hiding it did not help. {{^worse}/{^soon}, {worse}}. {feel_sorry}
| Then it got worse: {worse}. {feel_sorry}
| {The next day/Soon/Before long}, {worse}. {hero} could not {eat/sleep/play/sit still}.
  {feel_sorry}

truth_tell
| "It was me," {said/whispered/blurted out} {hero}. "I {am so sorry/should have told you}." And {he}
  told {parent} everything{, from beginning to end/}.
| {hero} took a deep breath. "{parent}, I have to tell you something," {he} said. "I did it. And
  then I hid it."
| At last {hero} could not stand it any more. {^he} ran to {parent} and {told {phim} the
  truth/admitted it all/burst into tears and told {phim} everything}.

truth_answer
| {parent} was quiet for a {moment/while}. "I am {not happy/sad} about the {object}," {phe} said,
  "but I am {glad/proud} that you told me the truth."
| "{Thank you for telling me/That was brave}," said {parent}. "A broken thing is bad. A lie is
  {worse/harder to mend}."
| {parent} {hugged {him}/took {him} in {phis} arms/sighed and then smiled}. "Everybody makes
  mistakes," {phe} said. "Now let us {see what we can do/put it right}."

truth_mend
| Together they put it right: {amends}.
| So {amends}.
| It took {all afternoon/some time/a lot of work}, but {amends}.

truth_light
| {hero} felt as light as {a soft_thing}.
| The {lump/knot} in {his} belly was gone.
| That night, {hero} slept {deeply/like a stone/without a single bad dream}.
| {hero} could look {parent} in the eye again, and that felt {good/wonderful}.

truth_moral: the truth is easier to carry than a lie, a mistake gets smaller when you tell it and
  bigger when you hide it, it takes courage to tell the truth, honest words mend more than glue,
  hiding a mistake only makes it grow, people trust those who tell the truth

truth_story
| {opening} {truth_rule} ¶ {truth_deed} {truth_hide} ¶ {truth_ask} ¶ {truth_worse} ¶ {truth_tell} ¶
  {truth_answer} {truth_mend} {truth_light} {teach} {the_end}
| {opening} ¶ {truth_rule} {truth_deed} ¶ {truth_hide} {truth_ask} {truth_worse} ¶ {truth_tell}
  {truth_answer} ¶ {truth_mend} {truth_light} ¶ {teach}
| {opening} {truth_rule} {truth_deed} {truth_hide} {truth_worse} {truth_tell} {truth_answer}
  {truth_mend} {teach}
"""

SHAPE = Shape("truth", tables=("truth",))
