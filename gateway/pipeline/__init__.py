"""One request from its reading to its outcome: placed, carried, settled, and tried again. Knows no shell."""
