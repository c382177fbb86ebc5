"""What the gateway was told to do: flags over environment over file, read once into frozen values."""
