"""Timings, side by side in one run. Each file prints the table it is for."""
