"""Someone is afraid; a helper goes along, and a closer look shows what the fear was made of."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
fear @child: fear | moment | seemed | offer | truth | now
- the dark | the lamp was turned off for the night | the {corner/door} of the room seemed to hide a
  {giant/bear/monster} | Let us go and shake the giant's hand | it was only a coat on a hook with a
  hat on top | said good night to the coat every evening
- thunder | the sky began to rumble | it sounded as if giants were rolling barrels over the roof |
  Count with me after each flash | they could count further every time, for the storm was moving
  away | counted the seconds of every storm, just for fun
- deep water | everyone jumped into the lake | the water looked black and as deep as the sky | Hold
  my hand and put in one foot, only one | the water was warm, and it only came up to {his} belly |
  was always the first to {jump/splash} in
- the big dog next door | the dog ran up to the fence | its teeth looked as long as candles | Hold
  out your hand and let it sniff | the dog only wanted somebody to throw its stick | threw the stick
  every day after lunch
- the dentist | {he} had to sit in the big chair | all the shiny tools seemed to stare at {him} |
  Count your teeth with me | the dentist had a mirror no bigger than a coin, and it only tickled |
  brushed all twenty teeth and named each one
- the tall slide | {he} stood at the very top | the ground looked as far away as the moon | Sit in
  front of me, and we will go down together | it was over in three seconds and felt just like flying
  | went down the slide again and again
- speaking in front of the class | every face turned toward {him} | all the words flew out of {his}
  head like birds | Look only at me, and pretend the others are cabbages | the first word was the
  hardest, and the others followed like ducklings | even wanted to read a poem out loud
- the cellar | the old stairs creaked | something down there was humming and growling | Take the
  lantern and lead the way, and I will be right behind you | it was only the cat, purring over four
  new kittens | ran down to the cellar three times a day
- spiders | a spider came down over the bathtub | all eight of its legs seemed to wave at {him} |
  Let us watch what she does | she was busy making a web as fine as lace, and she did not care about
  anyone | told everybody not to sweep away the webs
- the first day at a new school | the school bell rang | the building looked like a castle without a
  door | I will walk with you as far as the gate, and then you will take ten steps | there was a
  hook with {his} own name on it, and a chair, and a smile beside it | ran through the gate without
  counting steps
- the old neighbor with the long beard | he looked over the wall | he looked exactly like the ogre
  in the book | Let us bring him some {sweet} | he had a soft voice, a tame crow and a drawer full
  of puzzles | visited the old man and his crow every Sunday
- the ferry | the big boat blew its horn | the waves looked like hungry mouths | Let us stand in the
  middle and find the captain | the captain let {him} hold the wheel and blow the horn {himself} |
  wanted to be a captain one day
""",
    """
fear @animal: fear | moment | seemed | offer | truth | now
- the dark part of the forest | the sun went down | the trees seemed to stretch out long arms |
  Touch the arm of that monster, and tell me what it is | it was a branch with soft moss on it and a
  sleeping dove | walked there at dusk and said good evening to the trees
- thunder | the clouds began to growl | it sounded as if the hills were falling down | Count with me
  after each flash | the growling grew softer every time, and it was only clouds bumping their
  bellies | counted the seconds of every storm, just for fun
- deep water | the others swam across the lake | the lake looked like a big black mouth | Stay close
  to the bank, where the water plants hold you up | the water carried {him} like a big soft hand |
  swam to the island and back
- the log over the stream | it was time to cross | the water below roared and the log seemed to get
  thinner | Look at me and not at the water | it took only nine steps, and the log did not even
  wobble | danced across the log with closed eyes
- the voice in the cave | someone in the cave shouted right back | it seemed that a huge beast was
  in there | Say something kind and see what it answers | the cave called back every kind word,
  because the voice was only an echo | went to the cave to sing songs for two
- the scratching at night | something scratched outside the door | it seemed to have claws like
  sickles | Let us open the door a tiny crack | a small, wet hedgehog was asking for a dry place to
  sleep | left the door open a crack on cold nights
- the shadow on the hill | the full moon rose | the shadow had horns and a crooked back | Let us
  walk around it and look from the other side | it was a cow chewing grass, with the moon behind her
  | waved at every shadow in case it was a friend
- the north wind | the wind howled around the tree | it sounded like a hundred wolves | Let us make
  the wind play for us | when they hung up hollow reeds, the wind played a tune on them | fell
  asleep to the song of the wind
- high places | {he} looked down from the tall rock | everything below seemed to turn in circles |
  Sit down next to me and look at the horizon first | from up there they could see all the way to
  the sea | climbed up every evening to look at the sea
- being alone in the den | everyone went out to gather food | every little sound seemed to be a
  footstep | Tell me each sound you hear, and we will give it a name | there was a drip, a beetle
  and a snoring mole, and no footsteps at all | greeted the drip, the beetle and the mole by name
""",
)

RULES = """
fear_intro
| There was {only /just /}one {thing/problem}: {hero} was {scared/afraid} of {fear}.
| {hero} was not afraid of {mice/rain/bees/bats/frogs/ghosts} or {big waves/loud trains/snakes/tall
  ladders/wolves/beetles}. But {he} was very {scared/afraid} of {fear}.
| But {hero} had a secret. {^he} was {scared/frightened/afraid} of {fear}, and {he} had {never told
  anyone/told nobody}.
| Everyone thought that {hero} was {bold/fearless/never afraid}. Nobody knew how {scared/frightened}
  {he} was of {fear}.

fear_moment
| {one_day}, {moment}. {feel_scared} To {hero}, {seemed}.
| {one_day}, it happened: {moment}. {{^seemed}/To {hero}, {seemed}}. {feel_scared}
| Then came the day when {moment}. {feel_scared} {^seemed}.
| {one_day}, {moment}. {hero} {looked for a place to hide/closed {his} eyes/wanted to run away}.
  {{^seemed}/To {hero}, {seemed}}.

fear_ask
| {^the_helper} saw {him} {tremble/shake/turn pale} and {came closer/sat down beside {him}/took
  {his} side}. "Are you {afraid/scared}?" {hero} nodded.
| "You are {as white as chalk/shaking}, {hero}," said {the_helper}. "Is it {fear}?" "Yes,"
  {whispered/mumbled} {hero}.
| "I am not afraid," said {hero}, but {his} voice {shook/was as small as a mouse}. {^the_helper} did
  not laugh.
| "What is it, {hero}?" asked {the_helper}. "It is {fear}," {hero} {whispered/admitted}. "Please do
  not laugh."

fear_told
| "I was {afraid/scared} of that too when I was {little/your age}," said {helper}.
| "Being afraid is nothing {bad/to be ashamed of}," said {helper}. "Everyone is afraid {sometimes/of
  something}."
| "Fear is like fog," said {helper}. "It gets thinner when you walk into it."
| "Brave does not mean never being afraid," said {helper}. "Brave means {trying anyway/taking one
  small step}."
| "I know that feeling," said {helper}. "It makes small things look {big/huge}."

fear_step
| {hero} {took a deep breath/bit {his} lip/counted to three/swallowed hard}. One step. Then another.
  And what did {he} {find/see/learn}? {{^truth}/{^sure_enough}, {truth}}.
| It took {hero} a long time to say yes. {^slowly}, they {tried it/did it} together.
  {{^truth}/{^sure_enough}, {truth}}!
| "{All right/Fine/Okay}," said {hero} in a small voice. They did it together, and {truth}.
| {^whose} {heart/legs} {said/wanted to say} no, but {hero} said, "I will try." And {truth}.

fear_relief
| {hero} {began to laugh/had to laugh/giggled}. "Is that all?" {he} {asked/cried}.
| "Oh!" {said/laughed} {hero}. "That is not {scary/so bad} at all."
| {hero} felt {his} fear {melt like snow/fly away like a bird/shrink until it was no bigger than a
  pea}.
| {feel_happy}

fear_now
| {From then on/After that day/Soon}, {hero} {now}.
| {hero} was {no longer afraid/not afraid any more}, and {he} {now}.
| And can you guess what? Before long, {hero} {now}.

fear_moral: brave people are afraid too and try anyway, a closer look makes many fears small, fear
  grows smaller when you share it, the first step is always the hardest, it is easier to be brave
  when a friend is near, things are often less scary than they seem, telling someone about a fear
  takes away half of it

fear_story
| {opening} {fear_intro} ¶ {fear_moment} ¶ {fear_ask} {fear_told} ¶ "{offer}," {helper} said.
  {fear_step} ¶ {fear_relief} {fear_now} ¶ {teach} {the_end}
| {opening} ¶ {fear_intro} {fear_moment} ¶ {fear_ask} ¶ {fear_told} "{offer}." ¶ {fear_step}
  {fear_relief} ¶ {thanks} {fear_now} {cozy_end} {teach}
| {opening} {fear_intro} {fear_moment} {fear_ask} {fear_told} "{offer}." {fear_step} {fear_now}
  {teach}
| {fear_start} {fear_moment} ¶ {fear_ask} {fear_told} ¶ {helper} {thought for a moment/smiled/had an
  idea}. "{offer}." ¶ {fear_step} ¶ {fear_relief} {thanks} {fear_now} {teach}

fear_start
| {opening} {fear_intro}
| {^a child} named {hero} was {scared/afraid} of {fear}. {opening_more}
"""

SHAPE = Shape("fear", tables=("fear",), helpers=("elder", "friend", "parent"))
