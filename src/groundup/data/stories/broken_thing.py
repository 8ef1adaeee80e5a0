"""A friend breaks something by accident; it is forgiven, and mended by what fits the damage."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
broken: thing | play | broke | noise | need | mended
- {color} kite | fly it over the {hill/field} | the cross stick broke in two | snap | a straight
  twig and some string | they tied the twig in place of the broken stick
- wooden cart | give each other rides in it | a wheel came off | crack | a new peg for the wheel |
  they carved a peg and pushed the wheel back on
- paper lantern | carry it after dark | the paper tore down one side | rip | paper and {glue/paste}
  | they pasted {a color} patch over the hole
- rope swing | swing out over the grass | the rope came apart | whoosh | a longer, stronger rope |
  they twisted three ropes into one and tied it with a good knot
- raft | float on the {pond/shallow water} | two of the logs came loose | splash | strong rope and a
  lot of knots | they pulled the logs together and wound the rope around them six times
- tea set | have tea under the {tree} | the handle came off the pot | clink | a drop of {glue/sticky
  resin} | they stuck the handle on again and waited until it was dry
- flower crown | play kings and queens | all the flowers fell off | rustle | some grass and a little
  patience | they wove {a flower} and {a flower} back into the ring, one after another
- sand castle | dig tunnels around it | the tallest tower fell down | thump | wet sand and flat
  stones | they built the tower again, this time on flat stones
- tree fort | look out over the land | the ladder broke | crack | two long branches and some pegs |
  they made a new ladder that was even better
- drum | play in a band | the skin of the drum split | pop | a piece of strong cloth | they
  stretched the cloth across the top and tied it down
- puppet | put on shows with it | one arm came off | rip | a needle and {color} thread | they sewed
  the arm back on with tiny stitches
- sail boat | sail it down the stream | the mast broke off | snap | a thin, straight stick | they
  fitted a new mast and gave it {a color} sail
- snow globe of twigs and glass | shake it and watch the glitter | the lid came off | plop | wax to
  close the lid | they filled it again and sealed the lid with warm wax
- seesaw | go up and down on it | the board slipped off its log | bump | a deep notch in the log |
  they cut a notch so that the board could not slip any more
""",
)

RULES = """
broken_love
| {hero} had {a thing} that {he} had made {{himself}/with {his_elder}}. {^he} and {friend} loved to
  {play}.
| {hero} and {friend} shared {a thing}. There was nothing they liked more than to {play}.
| {hero}'s {thing} was {his} pride and joy. {^he} and {friend} would {play} {until dark/all
  afternoon/for hours}.

broken_crash
| {day_start}, the two friends went to {play}. {friend} was {laughing/running} and did not look.
  {^noise}! {^broke}.
| {day_start}, {friend} asked, "May I try it {alone/by myself}?" "Yes, but be careful," said {hero}.
  But {friend} was {too quick/not careful enough}. {^noise}! {^broke}.
| {day_start}, they were {in the middle of their game/having a wonderful time} when there was a loud
  noise. {^noise}! {^broke}.

broken_angry
| "You broke my {thing}!" {cried/shouted} {hero}. {friend} {went pale/looked at the ground/had tears
  in {fhis} eyes}. "I did not mean to," {fhe} {whispered/said}.
| {hero} {was/felt} {angry}. For a moment {he} wanted to {shout/stamp {his} foot/run home}. Then
  {he} saw {friend}'s {sad/frightened} face.
| "I am {so/very} sorry," said {friend}. "It was an accident." {hero} said nothing {at first/for a
  while}.

broken_turn
| {hero} took a deep breath. "It was an accident," {he} said. "{Shall we/Can we} try to mend it{/
  together}?"
| "A thing can be mended," {hero} said at last. "A friend is {harder to find/worth more}."
| {hero} remembered the day when {he} had broken something of {friend}'s, and how {friend} had
  forgiven {him}. "Never mind," {he} said. "We can mend it."
| Just then, {elder} came by and saw the {thing}. "It looks bad," {ehe} said, "but I think two
  clever friends can mend it."

broken_mend
| To mend it, they needed {need}. {friend} ran to get {what they needed/everything}, and {hero} held
  the pieces. {^slowly}, {mended}.
| "We need {need}," said {friend}, thinking hard. They {looked around/searched} until they had it
  all. Then {mended}.
| {friend} had an idea. "All we need is {need}," {fhe} said. They worked {side by side/all
  afternoon/without a word}. First it would not hold, so they tried again. In the end, {mended}.

broken_after
| When they were done, the {thing} {looked {a little /}different/was not perfect}, but it {worked
  again/was even stronger than before}.
| The {thing} was as good as new. Well, almost. {hero} liked it even {better/more} now.
| "Look!" said {hero}. "You can hardly see where it broke."

broken_end
| Then they went to {play} again, and this time they {took turns/were very careful}.
| "Thank you for not being {angry/cross} with me," said {friend}. "Thank you for helping me," said
  {hero}.
| After that, {hero} always {shared/let {friend} use} the {thing}, and {friend} always took good
  care of it.
| They shook on it: whatever broke, they would mend it together.

broken_moral: a friend is worth more than any toy, accidents happen and kind words mend them, saying
  sorry and helping to mend things makes them better, sharing is still a joy when things go wrong,
  it is better to mend than to blame, two friends can fix almost anything, forgiving makes a
  friendship stronger

broken_story
| {opening} {friend_intro} {broken_love} ¶ {broken_crash} ¶ {broken_angry} {broken_turn} ¶
  {broken_mend} ¶ {broken_after} {broken_end} ¶ {teach} {the_end}
| {opening} {broken_love} ¶ {broken_crash} {broken_angry} ¶ {broken_turn} ¶ {broken_mend}
  {broken_after} ¶ {broken_end} {cozy_end} {teach}
| {hero} and {friend} were {good/best/old} friends. {broken_love} {broken_crash} {broken_turn}
  {broken_mend} {broken_after} {teach}
"""

SHAPE = Shape("broken", tables=("broken",), helpers=("friend",))
