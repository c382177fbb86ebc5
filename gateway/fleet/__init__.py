"""What is known of pods, kept fresh: watching, probing, scraping, breakers. Decides nothing about requests."""
