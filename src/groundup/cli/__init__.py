"""The command line: one file a verb, found through `verbs`, run by `main`, imported late."""
