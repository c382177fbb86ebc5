"""The request pipeline, from a parsed request to its record: place, attempt, settle, retry. Knows no protocol."""
