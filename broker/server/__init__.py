"""The broker process: the thin edge between Pyro5 and the pure core. Decides nothing by itself."""
