"""Everything with I/O: sockets, clocks, files, and the request pipeline that calls the pure packages."""
