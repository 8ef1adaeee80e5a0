"""Someone cannot sleep for a reason of their own, and only what fits that reason helps."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
sleepless: reason | thought | failed | cure | answer | dream
- tomorrow was {his} birthday | What if nobody comes? | counted sheep, but the sheep wanted cake |
  told {him} the story of the day when {he} was born | You have been welcome from the very first
  minute | candles that sang
- {he} had not said sorry to {friend} | What if {friend} is still sad? | turned the pillow over nine
  times | helped {him} to think of the right words for the morning | It is never too late to say
  sorry, and tomorrow is early enough | a bridge with {friend} on the other side
- the moon was too bright | Why does it look at me like that? | pulled the blanket over {his} head,
  but then it was too hot | hung a {cloth/curtain of leaves} over the opening and left a tiny gap |
  The moon only wants to know that you are well | a silver boat
- {he} was {excited/nervous} about the long trip | What if we forget something? | got up four times
  to count the bags | wrote a list with {him} and let {him} cross off every line | What is on the
  list does not have to stay in your head | hills that rolled by like waves
- {he} missed {his_elder} | Is {elder} thinking of me too? | looked at the ceiling until it swam |
  opened the window and showed {him} the brightest star | {elder} looks at that star as well, so you
  can meet there | a long table with everybody at it
- {he} had slept all afternoon | Why is the night so long? | jumped on the bed, and then was even
  more awake | went outside with {him} and listened to the night sounds | The night is not empty, it
  is only quiet | an owl who told jokes
- one tooth was loose | What if I swallow it? | wiggled it a hundred times | gave {him} a piece of
  apple, and out came the tooth | Now you have room for a bigger one | a mouse with a tiny crown
- {his} favorite blanket was in the wash | How can I sleep without it? | tried a towel, a coat and a
  sock | let {him} use {phis} own scarf, which smelled of home | It is not the blanket that keeps
  you safe, it is us | a field of warm wool
- {he} had too many questions | Where does the day go at night? | asked every question out loud, and
  new ones came | put the questions into an empty jar and closed the lid | They will still be there
  after breakfast | a staircase of question marks
- {he} was angry about losing a game | Why did I have to lose? | punched the pillow until it was
  flat | played one slow round with {him} by candlelight and lost it with a smile | Losing is just
  the other half of playing | a game in which everyone won
- the wind was too loud | What if the roof flies away? | held on to the bed with both hands | gave
  the wind a name and said good night to it | When you know a name, you are not so afraid | a kite
  as big as a {house/hill}
""",
)

RULES = """
bed_night
| One {night/evening}, {hero} lay in bed and could not sleep, because {reason}.
| It was {late/long past bedtime}. Everyone was asleep. Only {hero} was awake, for {reason}.
| The {stars were out/moon was up/owls were calling}, but {hero} {lay awake/tossed and turned}. The
  trouble was that {reason}.

bed_think
| "{thought}" {he} {wondered/whispered into the dark/thought}.
| {hero} stared {into the dark/at the ceiling}. "{thought}"
| One thought went round and round in {his} head. "{thought}"

bed_try
| {^who} {failed}. It did not help.
| First {he} {failed}. Then {he} lay there again with {wide open/round} eyes.
| {^who} tried everything. {^who} {failed}.

bed_come
| {Then/After a while}, {his_parent} {came in/looked in} with a {small/dim} {light/lamp}. "{Still
  awake/Can you not sleep}, {little one/my dear/sweetheart}?" {hero} shook {his} head and {told
  {phim} why/explained everything}.
| "{parent}?" {called/whispered} {hero}. {parent} came {at once/in slippers/with messy hair}. "What
  is it?" {hero} told {phim} {everything/what was on {his} mind}.
| {hero} {tiptoed/crept} to {parent}. "I cannot sleep," {he} whispered. {parent} made room. "Tell
  me."

bed_cure
| {parent} did not say, "Just {close your eyes/go to sleep}." Instead {phe} {cure}. "{answer},"
  {phe} said.
| {parent} {thought for a moment/nodded}. Then {phe} {cure}. "{answer}," {phe} {said/whispered}.
| So {parent} {cure}. "There," {phe} said. "{answer}."

bed_calm
| {hero} {felt/became} {calm/warm/quiet inside}. {^his} {eyes/eyelids} {grew/got} heavy.
| {hero} yawned{ once, and then again/ like a little lion/ until {his} jaw cracked}.
| It was {quiet/still}. {Outside/Far away}, {a dog barked once/a stream murmured/the leaves
  rustled/a cricket sang}.
| {hero} {snuggled/rolled up} under the blanket. The bed was {soft/warm} now.

bed_dream
| Soon {he} was asleep, and {he} dreamed of {dream}.
| And before {parent} reached the door, {hero} was dreaming of {dream}.
| That night {he} dreamed of {dream}, and in the morning {he} {told everyone/still smiled/remembered
  all of it}.

bed_moral: a worry gets smaller when you tell it to someone, every night ends in a morning, it helps
  to find out what is really keeping you awake, a kind word at night is better than a hundred sheep,
  you are never alone with your thoughts when someone loves you

bed_story
| {opening} ¶ {bed_night} {bed_think} ¶ {bed_try} ¶ {bed_come} ¶ {bed_cure} ¶ {bed_calm} {bed_dream}
  {teach}
| {opening} {bed_night} ¶ {bed_think} {bed_try} ¶ {bed_come} {bed_cure} ¶ {bed_calm} {bed_calm}
  {bed_dream}
| {bed_night} {bed_think} {bed_try} {bed_come} {bed_cure} {bed_calm} {bed_dream}
"""

SHAPE = Shape("bed", tables=("sleepless",))
