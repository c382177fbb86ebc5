"""The client's side: its connection, what it asks, and the reply that everything it is sent goes through."""
