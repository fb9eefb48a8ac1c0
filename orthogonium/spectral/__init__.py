"""The independent oracle: exact spectra, certified upper bounds, estimates from below."""
