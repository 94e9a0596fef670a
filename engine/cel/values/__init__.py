"""Values and their types, below the checker and all evaluators: what a value is, how it is read, until when."""
