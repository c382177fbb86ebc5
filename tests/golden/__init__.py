"""The golden run: recorded traffic through the real gateway in virtual time, compared with a committed recording."""
