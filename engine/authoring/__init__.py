"""Help for those who write policies: completion, hover, symbols and renaming at a place of a text."""
