"""How many engines, and when: supply decisions beside other scalers and a clairvoyant one, in virtual time."""
