"""Configuration: flags over environment over file, read once into frozen values; one module per section."""
