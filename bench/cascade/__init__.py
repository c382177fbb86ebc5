"""What a cascade guarantees and whether that holds; what holding back costs."""
