"""What kind of task a prompt is, told from its words by counting: cheap, stated, and never kept text."""
