"""The transport on real sockets: opening them, the compiled loop over them, and its thread."""
