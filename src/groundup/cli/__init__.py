"""The command line: `main` looks up a verb in `verbs` and imports its module on demand."""
