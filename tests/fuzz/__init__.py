"""Whatever parses, fed with anything: a corpus that is kept, replayed by the tests and grown by long runs."""
