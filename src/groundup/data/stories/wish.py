"""A wish comes true, brings a joy and then the trouble that belongs to it, and is given back."""

from groundup.data.stories.shape import Shape

TABLES = (
    """
giver: giver | meet | signal | goodbye
- shooting star | a shooting star fell right behind {the shed/the hill/the old wall} and lay there
  glowing | the star crackled | the star hopped back up into the sky
- tiny fairy | {a tiny} fairy sat on {a flower} and sneezed three times | the fairy clapped her
  hands | the fairy waved and flew off on a moth
- golden fish | a golden fish looked out of the {pond/stream/well} and spoke | the fish blew a
  bubble | the fish winked and dived down deep
- old lantern | {he} rubbed the dust from an old lantern, and blue smoke came out of it | the smoke
  turned green | the smoke curled back into the lantern
- wishing well | a voice came out of the wishing well | the well gurgled | the well was silent again
- gray goose | a gray goose with a crown landed in front of {him} | the goose flapped her wings |
  the goose honked and flew south
- snail with a silver shell | a snail with a silver shell stopped in front of {his} feet | the snail
  wiggled its horns | the snail went on its way, and it took a long time
- little cloud | a little cloud came down and sat on the {grass/fence} like a sheep | the cloud
  rained a single drop | the cloud floated up and joined the others
- north wind | the north wind sat down on a {stump/bench} to rest | the wind whistled once | the
  wind picked up its coat and rushed away
- moon | the moon bent down so low that {he} could touch it | the moon blinked | the moon climbed up
  again and went behind a cloud
""",
    """
wish: wish_mine | joy | trouble | back_mine | learned
- be very tall | could look over every {fence/tree} and pick the highest apples | {he} did not fit
  through the door, and {his} feet stuck out of the bed | be my own size again | your own size is
  just right for you
- be as small as an ant | rode on a beetle and slept in {a flower} | nobody could hear {him}, and a
  single raindrop knocked {him} over | be my own size again | being seen and heard is worth a lot
- fly like a bird | flew over the {hills/rooftops} and did loops in the air | the wind blew {him}
  far away, and {his} friends were only dots below | walk on the ground again | home is where your
  friends are
- have {cake/candy/pie} at every meal | ate sweet things for breakfast, lunch and supper | {his}
  belly ached, and even the smell made {him} groan | have a bowl of plain {meal} again | a treat is
  only a treat when it is rare
- stay awake forever | played all night and counted every star | {he} was so tired that {he} put
  salt in {his} milk and fell asleep standing up | sleep when it is dark | a good sleep is worth
  more than a long night
- have summer every day | swam and lay in the sun, day after day | the {flowers/fields} dried up,
  and there was no snow for the sleds | have all the seasons back | every season has its own joy
- be invisible | tiptoed everywhere and played the funniest tricks | nobody shared a joke with
  {him}, and {his_parent} looked everywhere for {him} and cried | be seen again | it is good to be
  seen by those who love you
- turn things to gold | touched a stone, a leaf and a stick, and they all shone | {his} blanket
  turned cold and hard, and {his} supper clinked | have soft and warm things again | the best things
  are not made of gold
- make everything I say come true | said "lemonade" and got a fountain of it | {he} said "I am a
  potato" for fun and rolled down the hill as a potato | have words that are only words | it is wise
  to think before you speak
- have the whole world to myself | had all the swings and all the {sweet} and never had to wait |
  there was nobody to push the swing and nobody to laugh with | have everyone back | joy is bigger
  when it is shared
- have a real dragon | rode on its back and toasted bread over its nose | the dragon sneezed, and a
  haystack caught fire | let the dragon fly home to its mother | wild things belong in the wild
- talk with insects | heard the secrets of the bees and the jokes of the beetles | the crickets
  would not stop chatting all night, and the fleas sang rude songs | hear only chirping again |
  everyone needs some quiet now and then
- live without any rules | stayed up late, jumped on everything and never washed | {his} friends had
  no rules either, and they took {his} things and would not play fair | have a few good rules again
  | rules are there to keep things fair
- be faster than the wind | ran to {place} and back before anyone could blink | {he} ran right past
  everything and could not look at a single flower | go slowly again | the nicest things can only be
  seen slowly
- never be wet again | walked through {rain/the fountain/the stream} and stayed as dry as toast |
  {he} could not swim or wash, and even {his} drink jumped out of the cup | get wet again | every
  good thing has two sides
""",
)

RULES = """
wish_meet
| {day_start}, something {strange/wonderful/odd} happened: {meet}.
| {day_start}, {hero} could not believe {his} eyes. {^meet}!
| {day_start}, {hero} was {all alone/on the way home/looking for pretty stones} when {meet}.

wish_offer
| "You {were kind/said good morning/did not laugh at me/look like an honest {child}}," {it_said}.
  "You may make one wish."
| "{One wish/A single wish}," {it_said}. "{Think well/Choose with care/Take your time}."
| "Because you {found/greeted/saw} me, I will grant you a wish," {it_said}.

it_said
| said the {giver}
| the {giver} said
| whispered the {giver}

wish_make
| {hero} did not have to think {long/at all}. "I wish to {wish_mine}!" {he} {said/cried/shouted}.
| "I want to {wish_mine}," {said/whispered} {hero}{, and {his} eyes shone/}.
| {hero} thought and thought. "I would like to {wish_mine}," {he} said at last.

wish_grant
| {^signal}, and the wish came true.
| {^signal}. There was a {flash/puff/tingle/hum}, and it was done.
| "So be it." {^signal}, and from that moment on it was so.

wish_joy
| What fun it was! {hero} {joy}. {feel_happy}
| At first it was {wonderful/better than any dream/like a birthday}. {hero} {joy}.
| {hero} {joy}. "This is the best day of my life," {he} {thought/said}.

wish_trouble
| But soon there was trouble. {^trouble}. {feel_sad}
| But after {a day/a while/three days}, it was not so {nice/funny/good} any more. {^trouble}.
| Then came the other side of the wish. {^trouble}. "I did not think of that," {said/sighed} {hero}.

wish_return
| {^who} {ran/went} back and called, "Please, {giver}! I want to {back_mine}!"
| "{Dear /Please, }{giver}," {hero} {begged/called/said}, "take it back! I wish to {back_mine}."
| That {night/evening}, the {giver} came again. "Well?" "I wish to {back_mine}," said {hero}
  {quietly/at once/without thinking twice}.

wish_end
| {^signal}, and everything was as it had been. Then {goodbye}.
| "I thought so," {it_said}. {^signal}, and it was done. Then {goodbye}.
| {^goodbye}, and everything was {just /}as before. {hero} had never been so {happy/glad/pleased} to
  be {himself}.

wish_moral
| {learned}

wish_story
| {opening} ¶ {wish_meet} ¶ {wish_offer} {wish_make} {wish_grant} ¶ {wish_joy} ¶ {wish_trouble} ¶
  {wish_return} {wish_end} ¶ {cozy_end} {teach} {the_end}
| {opening} {wish_meet} {wish_offer} ¶ {wish_make} {wish_grant} {wish_joy} ¶ {wish_trouble}
  {wish_return} ¶ {wish_end} {teach}
| {opening} {wish_meet} {wish_make} {wish_grant} {wish_joy} {wish_trouble} {wish_return} {wish_end}
  {teach}
"""

SHAPE = Shape("wish", tables=("giver", "wish"))
