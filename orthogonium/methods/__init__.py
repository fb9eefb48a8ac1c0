"""Raw parameters to constrained weights, one method per file."""
