"""What an answer says of itself: log-probabilities and shape, never what the model says when asked how sure it is."""
