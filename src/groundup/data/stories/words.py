"""Word lists that every story draws from: colours, foods, hobbies, places, times of day."""

WORDS = """
color: red, blue, green, yellow, orange, purple, pink, brown, white, golden, silver, gray,
  turquoise, scarlet, violet, crimson, emerald, lilac, peach, navy

trait: little, curious, cheerful, gentle, lively, friendly, clever, dreamy, quiet, thoughtful,
  merry, bouncy, small, kind, playful, energetic, adventurous, imaginative, polite, funny

homely: small, cozy, tidy, tall, narrow, crooked, bright, old, noisy, sunny, round, warm, wooden,
  yellow, white, busy, quiet, odd

home @child: house, cottage, flat, farmhouse, apartment, cabin, houseboat, home
home @animal: burrow, den, hollow, nest of leaves, hole under the roots, cave, mossy hut, hollow log

near @child: by the sea, near the river, at the edge of town, on a quiet street, behind the bakery,
  at the top of a hill, next to the library, close to the harbor, in a small village, by the
  railway, across from the park, near a wide field, above a flower shop, at the end of a long lane,
  beside the old mill, not far from the mountains, on the island, next to an apple orchard
near @animal: deep in the forest, by the pond, under the old oak, at the edge of the meadow, beside
  a bubbling stream, on the side of a grassy hill, near the berry bushes, behind the waterfall,
  between two mossy rocks, in the middle of the marsh, below the tall pines, close to the lake, at
  the foot of the mountain, in a patch of ferns, not far from the beehives, beyond the corn field

place @child: the park, the garden, the playground, the beach, the schoolyard, the field, the
  orchard, the backyard, the village square, the riverbank, the farm, the town green
place @animal: the meadow, the clearing, the pond, the stream, the hillside, the berry patch, the
  edge of the forest, the sandy bank, the old stump, the valley, the fern grove, the lake

hobby @child: draw pictures of ships, collect smooth stones, sing in the bath, count the clouds,
  climb trees, read about dinosaurs, dance in the kitchen, build towers, chase butterflies, listen
  to stories, ride a scooter, look for snails, play the drum, paint with bright colors, splash in
  puddles, make paper boats, watch the trains go by, feed the ducks, jump rope, hum old songs, bake
  tiny cakes, dig in the sand, ask hard questions, swing very high, play hide and seek, catch
  bubbles, pick daisies, watch ants, play with clay, make up silly words, water the flowers, roll
  down hills, look at the moon, fly paper planes, juggle socks, invent new games, press leaves in
  books, whistle, tell jokes, explore the attic, solve puzzles, stack blocks, skip stones, plant
  seeds, race snails
hobby @animal: nibble clover, slide down muddy banks, chase falling leaves, hop over puddles, gather
  acorns, sing with the crickets, roll in the grass, splash in the shallow water, watch fireflies,
  collect feathers, dig tunnels, sniff flowers, play tag with the wind, count the stars, sleep in
  the sun, listen to the rain, build little dams, tell stories, race along the stream, climb on
  logs, look for mushrooms, swing from branches, jump over roots, taste wild berries, gaze at the
  moon, balance on stones, follow beetles, hum with the bees, stack pebbles, explore caves, float on
  lily pads, hide in tall grass, watch the clouds, paint with mud, dance in the moonlight

weather: sunny, breezy, cloudy, warm, cool, bright, misty, quiet, windy, fresh, mild, clear

sky_line
| The sun {was warm/shone brightly/peeked over the {rooftops/hills/treetops}}{/ and the sky was
  {blue/clear/wide}}.
| A {soft/gentle/light/warm} {breeze/wind} {blew through/moved/rustled} the {leaves/grass/branches}.
| Birds were {singing/chirping/calling} in the {trees/hedges/bushes}.
| {Fluffy/White/Puffy/Slow} clouds {drifted/floated/sailed} {by/across the sky/over the hills}.
| The air smelled of {flowers/cut grass/fresh bread/pine needles/wet earth/honey/ripe apples/the
  sea}.
| {Dew/Sunlight/A thin mist} {lay/sparkled/shimmered} on the {grass/leaves/fields}.
| Somewhere {nearby/far away}, {a dog barked/a bell rang/a rooster crowed/an owl hooted/a frog
  croaked}.
| The {grass/path/ground} was {still wet/soft/dry and warm/cool} {under/beneath} {his} {feet/toes}.
| It was the kind of day that makes you want to {skip/sing/run/laugh/hum/explore}.

day_start
| One {weather} {morning/afternoon/day}
| One {morning/day/afternoon}
| On {a weather} {morning/afternoon/day}
| Early one {/spring /summer /autumn }morning
| One {spring/summer/autumn} {morning/afternoon/day}
| On {a weather} {Monday/Tuesday/Wednesday/Thursday/Friday/Saturday/Sunday}
| One {Saturday/Sunday/Monday/Wednesday/Friday}
| Late one afternoon
| {Right/Soon/Just} after {breakfast/lunch}

who
| {he}
| {he}
| {hero}

whose
| {his}
| {his}
| {hero}'s

soon: soon, before long, a moment later, after a while, a little later, in no time, at last, sure
  enough

sure_enough: as it turned out, in truth, believe it or not, as a matter of fact

one_day
| One day
| Then, one day
| One {Saturday/Sunday/Monday/Wednesday/Friday}
| Not long ago

sweet: cookies, pancakes, muffins, apple pie, blueberry cake, honey bread, plum tarts, ginger
  biscuits, raisin buns, cherry pie, banana bread, lemon cake, waffles, strawberry jam sandwiches,
  cinnamon rolls
drink: hot cocoa, warm milk, lemonade, apple juice, mint tea, berry tea, cool water, orange juice
meal: soup, noodles, baked potatoes, rice and beans, mushroom stew, pumpkin soup, tomato soup,
  cheese toast, corn chowder, dumplings, omelets, spaghetti, pea soup, roasted carrots
flower: daisy, tulip, rose, buttercup, poppy, bluebell, violet, lily, daffodil, sunflower, dandelion
tree: oak, birch, maple, willow, pine, chestnut, apple tree, beech, fir, elm, cherry tree, pear tree

slowly: slowly, quietly, carefully, softly, gently, calmly
quickly: quickly, at once, right away, in a hurry, as fast as {he} could, without waiting

sad: sad, upset, unhappy, gloomy, miserable, downhearted, glum, heavy inside
happy: happy, glad, delighted, joyful, pleased, cheerful, proud, thrilled, overjoyed, content
scared: scared, frightened, afraid, nervous, worried, uneasy, shaky
angry: angry, cross, mad, furious, annoyed, grumpy

tiny: tiny, small, little, wee, miniature

soft_thing: feather, cloud, pillow, kitten, blanket, cotton ball, dandelion puff, marshmallow
bright_thing: star, lantern, new penny, candle, firefly, morning sun, diamond, lamp
"""
