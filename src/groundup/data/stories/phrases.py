"""Phrases that all story shapes share: beginnings, feelings, thanks, ends and morals."""

PHRASES = """
opening
| Once upon a time, there was {a trait} {child} named {hero}. {opening_more}
| Once upon a time, {a trait} {child} {named/called} {hero} lived {in {a homely} {home} /}{near}.
| {hero} was {a trait} {child} who lived in {a homely} {home} {near}.
| {hero} was {a trait} {child} who loved to {hobby}.
| In {a homely} {home} {near} lived {a trait} {child} {named/called} {hero}. {opening_more}
| There once was {a trait} {child} named {hero} who {loved/liked} to {hobby}.
| There was {a child} named {hero}. {opening_more}
| {^near}, in {a homely} {home}, there lived {a trait} {child} named {hero}.
| {Everyone/Everybody} who lived {near} knew {hero}, {a trait} {child} who loved to {hobby}.
| This is a story about {hero}, {a trait} {child} who lived {near}.
| Not so long ago, {a child} named {hero} lived with {his_parent} in {a homely} {home} {near}.
| {Some/Many} {long/old/famous} stories begin with a {king/dragon/castle/princess/storm}. This one
  begins with {a trait} {child} named {hero}.

opening_more
| {^who} loved to {hobby}.
| {^who} liked to {hobby} and to {hobby}.
| {^who} had {a baby sister/a big brother/two small brothers/three noisy cousins/a very old aunt}
  and no end of {ideas/questions/energy/wishes}.
| Most of all, {he} loved to {hobby}.
| {^who} could {hobby} all day long.
| When {he} was not busy, {he} liked to {hobby}.
| {^whose} favorite thing was to {hobby}.
| {^who} was {trait} and {trait}.
| On {weather} days, {he} went to {place} to {hobby}.

friend_intro
| {^whose} best friend was {a trait} {fchild} named {friend}.
| {hero} had a good friend, {a trait} {fchild} called {friend}.
| {hero} and {his} friend {friend} {played together/saw each other} {every day/almost every
  day/after lunch}.
| {friend}, {a trait} {fchild}, lived {next door/close by/just around the corner}, and the two were
  good friends.
| {hero} often played with {friend}, {a trait} {fchild} who loved to {hobby}.
| {hero} and {friend} had been friends {for as long as they could remember/since they were very
  small}.

feel_sad
| {hero} {felt/was} {very /so /}{sad}.
| {^whose} eyes filled with tears.
| A {big/fat/hot/single} tear rolled down {his} {cheek/nose}.
| {^whose} heart felt as heavy as {a stone/a wet coat/a bag of sand/lead}.
| {^who} {sat down on the ground/sat down/sank down} and {sighed/sniffled/hid {his} face/stared at
  {his} feet}.
| {^whose} {lip/chin/voice} {trembled/shook/began to wobble}.
| "Oh no," {he} {whispered/said/thought/sighed}.
| {hero} did not want to cry, but the tears came anyway.

feel_happy
| {hero} {felt/was} {so /very /}{happy}.
| {^who} {jumped up and down/did a little dance/laughed out loud/spun in a circle/let out a cheer}.
| {^whose} face lit up like {a bright_thing}.
| {^whose} heart felt as light as {a soft_thing}.
| {hero} could not stop smiling.
| {^who} {grinned/smiled/beamed} from ear to ear.
| A warm feeling {spread/grew} in {his} {chest/belly/heart}.
| "{Hooray/Hurray/Yes/Yippee/Wonderful}!" {cried/shouted/called} {hero}.

feel_scared
| {hero} {was/felt} {scared}.
| {^whose} {knees/legs} {shook/trembled/wobbled like jelly}.
| {^whose} heart {beat/thumped/pounded} {fast/like a drum/in {his} ears}.
| {^who} {held {his} breath/froze/did not dare to move/swallowed hard}.
| A {cold/funny} {shiver/tingle} ran down {his} back.

feel_sorry
| {hero} felt {very /so /}{sorry/bad/ashamed} about it.
| A heavy {lump/knot/feeling} sat in {his} {belly/tummy/chest}.
| {hero} wished {he} could turn back {the clock/time}.
| {^whose} cheeks {grew/turned} {hot/red}.
| {hero} looked {down at/hard at} {his} feet.

ask_wrong
| "What is {wrong/the matter}, {hero}?" {asked/said} {the_helper}.
| "Why do you look so {sad/unhappy/glum}?" asked {the_helper}.
| "You look {sad/upset/worried}, {hero}," said {the_helper}. "What happened?"
| {^the_helper} saw {his} face and asked, "What {happened/is it}, {hero}?"
| "Tell me {what happened/all about it/what is wrong}," said {the_helper} {gently/softly/kindly}.

thanks
| "Thank you, {helper}," {said/whispered} {hero}. {thanks_more}
| "{Thank you/Thanks} so much!" {said/cried} {hero}{/ and hugged {helper}}.
| "I could not have done it without you, {helper}," said {hero}.
| {hero} {hugged/thanked} {helper} {again and again/with all {his} heart/and did not let go for a
  while/happily}.
| "You are {the best/so kind/a real friend}, {helper}," {hero} said.

thanks_more
| "You are very kind."
| "I will never forget this."
| "I did not know what to do."
| {^hero} {smiled/beamed/bowed/laughed}.
|

cozy_end
| That night, {hero} fell asleep with a smile on {his} face.
| When the {moon/first stars/owls} came out, {hero} was already fast asleep.
| At {bedtime/supper/dinner}, {hero} told {his_parent} {all about it/the whole story}{/ from
  beginning to end/ twice}.
| Before bed, {he} looked {out /up }at the {moon/stars/night sky} and {smiled/felt warm inside/felt
  lucky}.
| {^who} slept better than {he} had in a long time.
| {At home/Later} they had {sweet} and {drink}, and nobody could {imagine/think of/remember} a
  better {day/treat}.
| For {supper/dinner} they had {meal}, and {everything tasted better than ever/{hero} had two
  helpings/everyone wanted more}.
| It had been a {good/long/fine/strange and wonderful} day.
| The {sky/sun/clouds} turned {pink/orange/gold}, and it was time to go home.
|
|

teach
| {hero} {learned/had learned} that {moral}.
| {From that day on/After that/Ever since}, {hero} {remembered/knew/never forgot} that {moral}.
| {The moral of the story is/The lesson is/This story shows/Remember} that {moral}.
| And that is how {hero} {learned/found out/came to know} that {moral}.
| "{^moral}," said {his_parent}, and {hero} nodded.
| "Now I know something," {said/thought} {hero}. "{^moral}."
| {hero} thought about it {before bed/on the way home/for a long time/that evening}. {^moral}.
| {^moral}. {hero} {never forgot it/told everyone so/knew that now/would remember it}.
|

walk_home
| {hero} {hummed/skipped/whistled/smiled/sang/hopped} all the way home.
| {hero} {walked/strolled/wandered} home {slowly/through the long grass/under the first stars/with
  the wind at {his} back}.
| On the way home, {hero} {counted {clouds/birds/snails/fence posts}/could talk of nothing
  else/hummed {a happy/a new/an old} tune}.
|

the_end
| The end.
|
|
|
|
|
"""
