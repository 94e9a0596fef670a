"""What running documents of all kinds share: their match, aggregates, sort keys, and distances for explanations."""
