"""The precise prefix index: follows the KV events of engines and answers how many tokens of a prompt they hold."""
