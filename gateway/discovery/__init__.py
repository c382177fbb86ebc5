"""Where pods come from: one source a file, all behind one interface."""
