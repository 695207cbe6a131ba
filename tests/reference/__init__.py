"""Slow float64 references written from the specification alone; they import nothing of jaxrl_trade."""
