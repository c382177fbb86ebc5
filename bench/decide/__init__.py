"""What one decision costs: look up what engines hold, score them, choose, charge; with admission, ask who may."""
