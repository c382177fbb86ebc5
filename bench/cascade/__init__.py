"""What a ladder promises and whether that holds; what holding back costs."""
