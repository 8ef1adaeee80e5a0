"""The grammar of little stories: a file for each shape of story, and the machine for all."""
