"""What muster offers the programs that it starts. It is on the path of Python where muster put it, and needs nothing."""
