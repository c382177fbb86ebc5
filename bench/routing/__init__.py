"""Where requests go, by whose rule, and what that does to first tokens: in virtual time, and live beside others."""
