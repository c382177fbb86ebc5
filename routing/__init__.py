"""The words of the gateway and the choice of an engine; imports nothing of ours and knows no clock."""
