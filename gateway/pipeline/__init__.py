"""The request pipeline from a parsed request to its record: place, attempt, settle, retry. Independent of protocols."""
