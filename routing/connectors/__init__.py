"""How engines hand KV to each other, one connector a file: the words both legs of a pair are told, never who calls."""
