"""How near `hearth shadow` is: its prediction beside what happens after the switch."""
