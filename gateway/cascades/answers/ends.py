"""How an answer may end, in the words that all APIs are put into."""

LENGTH = "length"
STOP = "stop"
CALLS = "tool_calls"
