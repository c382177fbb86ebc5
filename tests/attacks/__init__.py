"""What clients can do on purpose to a gateway's time and memory, and how much of it they get, by docs/bounds.md."""
