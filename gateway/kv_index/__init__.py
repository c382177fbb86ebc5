"""The warmth process of a host: what its workers tell each other, other hosts, and ask about exact warmth."""
