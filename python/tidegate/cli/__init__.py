"""The `tidegate` command. Nothing here imports torch before a subcommand needs it."""
