"""Everything that touches the world: sockets, clocks, files and the one spine that joins the pure packages."""
