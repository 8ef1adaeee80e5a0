"""A contest with a boaster; someone stops to help, and that counts for more than winning."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
race: contest | boast | prize | trouble | stop | mishap | outcome
- the race around the lake | I am faster than the wind | {a color} ribbon | a small {child} had
  fallen and was crying beside the track | stopped, cleaned the scraped knee and carried the little
  one along | {rival} took a shortcut through the mud and got stuck | {hero} came in last but one,
  with the little one laughing in {his} arms
- the pumpkin show | Mine is as big as a carriage | a golden watering can | the old
  {neighbor/gardener} could not lift her pumpkin onto the cart | stopped to push, and came late to
  the judges | {rival}'s pumpkin was so big that it cracked in two | the judges gave the can to the
  tastiest pumpkin, and that was the one {hero} had brought
- the boat race | My boat is the fastest of all | a jar of honey | another boat had lost its sail
  and was drifting away | threw it a rope and towed it behind | {rival} looked back to laugh and ran
  into the reeds | two tied boats crossed the line side by side
- the baking contest | Nobody bakes like me | a silver spoon | {friend} had forgotten to bring eggs
  | gave {friend} two of {his} own eggs | {rival} opened the oven too early, and the cake sank | the
  judges could not decide between {hero} and {friend} and cut the spoon in two
- the climbing contest | I could do it with closed eyes | a golden bell | a young bird sat on the
  path and could not fly | put the bird safely into a bush before going on | {rival} took the steep
  way and had to turn back | {hero} reached the top just in time to ring the bell for everyone
- the treasure hunt | I already know where it is | a box of {sweet} | the smallest ones could not
  read the clues | read every clue out loud for them | {rival} ran off without reading the last clue
  | the treasure chest was so heavy that only all of them together could lift it
- the singing contest | My voice makes the stars come out | a feather crown | {friend} had lost
  {fhis} voice from fear | sang the first line together with {friend} | {rival} sang so loudly that
  the song broke in the middle | the audience sang along with {hero} and {friend}, and nobody asked
  who had won
- the sack race | I never fall down | a bag of marbles | the sack of {friend} had a hole in it |
  shared one big sack with {friend} | {rival} hopped too fast and rolled over the line sideways,
  backwards and last | {hero} and {friend} fell over the line together, laughing
- the kite contest | Mine will touch the moon | a ball of {color} string | the string of {friend}'s
  kite had torn | tied {friend}'s kite to {his} own | {rival} let out too much string, and the kite
  flew away over the hills | the two kites climbed together and looked like one long bird
- the snow sculpture contest | Mine will be as tall as a tower | a warm {color} hat | {friend} could
  not roll the big ball alone | helped to roll it, and so had time for only a very small sculpture |
  {rival}'s tower was too thin and fell over in the wind | {hero}'s small snow mouse made everyone
  smile, and it got the hat
""",
)

RULES = """
rivals: Rex, Dash, Bruno the Quick, Greta the Great, Champ, Duke, Max the Mighty, Lightning Lou,
  Queenie, Bolt

race_news
| {one_day}, there was {big /exciting /}news {near}: {contest}! The prize was {prize}.
| Every year, there was {contest}. The winner got {prize}, and {hero} had {always/long} wanted to
  take part.
| {hero} had been {getting ready/practicing} for weeks. {one_day}, it was finally time for
  {contest}.

race_boast
| {rival} {was there too/came strutting along}. "{boast}," said {rival}. "{You can all go home/The
  prize is mine/Do not even try}."
| "{boast}," {boasted/bragged} {rival} and looked down at {hero}. "You? You will {never win/come
  last}."
| Nobody talked as {loudly/much} as {rival}. "{boast}!" {rival} told everyone {twice/who came near}.

race_start
| "{Ready, set, go/On your marks, get set, go/Let us begin}!" called {his_elder}. {hero}'s heart
  {beat/thumped} {fast/like a drum}.
| {^his_elder} {blew a horn/waved a flag/rang a bell}, and it began.
| "Do your best and be fair," said {his_elder}, and then it started.

race_trouble
| {hero} was doing {well/better than ever}. But then {he} saw that {trouble}.
| Everything went well at first. Then {hero} noticed something: {trouble}.
| The others {rushed by/did not look}. But {hero} saw that {trouble}.

race_choice
| If {he} stopped, {he} would surely lose. {hero} thought about it for one {breath/moment}. Then
  {he} {stop}.
| "{Keep going/Do not stop}!" someone {called/shouted}. But {hero} {stop}.
| {rival} {laughed/only shrugged}. {hero} {did not care/did not laugh}. {^who} {stop}.

race_mishap
| Meanwhile, {rival} was {far ahead/sure to win}. But {mishap}.
| And {rival}? {{^mishap}/{^soon}, {mishap}}.
| Then there was a {shout/cry}. {{^mishap}/{^soon}, {mishap}}.

race_outcome
| In the end, {outcome}.
| Nobody had expected what came next: {outcome}.
| And so {outcome}. {feel_happy}

race_praise
| "I have seen many {winners/contests}," said {elder}, "but {today I saw something better/a good
  heart is rarer}."
| Everyone {clapped/cheered} for {hero}. {Even/After a while, even} {rival} {clapped/came over and
  shook {his} hand}.
| "{Why did you stop?/You could have won!}" said {rival} later. {hero} {shrugged/smiled}. "Some
  things are more {important/fun} than {winning/a prize}," {he} said.

race_moral: helping someone is better than winning, those who boast often trip over their own words,
  a good heart is worth more than a prize, winning is only fun when you play fair, being kind is
  never a waste of time, together you get further than alone

race_story
| {opening} ¶ {race_news} {race_boast} ¶ {race_start} {race_trouble} ¶ {race_choice} ¶ {race_mishap}
  {race_outcome} ¶ {race_praise} {teach} {the_end}
| {opening} {race_news} ¶ {race_boast} ¶ {race_start} {race_trouble} {race_choice} ¶ {race_mishap} ¶
  {race_outcome} {race_praise} {cozy_end} ¶ {teach}
| {race_news} {race_boast} {race_trouble} {race_choice} {race_mishap} {race_outcome} {teach}
"""

SHAPE = Shape("race", tables=("race",), words={"rival": "{rivals}"})
