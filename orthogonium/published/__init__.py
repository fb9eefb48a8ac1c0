"""What scripts for orthogonium 0.0.4 import: `paths` is the table, `helpers` holds what has no other name."""
