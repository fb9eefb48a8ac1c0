"""Where scripts for orthogonium 0.0.4 find what they import: `paths` is the table, `helpers` what has no other name."""
