"""Reports about a policy: explanations, differences, its JSON Schema, and a dry run on logged requests."""
