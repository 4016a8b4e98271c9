"""Stands for networkx, which torch's compiler imports and does not use here. The real one reads the whole environment when it is
imported, so that neither it nor what imports it can be in a template of warm starts."""
DiGraph = None
