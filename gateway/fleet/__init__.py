"""The watched fleet: discovery, probes, scrapes and circuit breakers of pods. Makes no decision about requests."""
