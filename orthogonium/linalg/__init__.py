"""Matrix to orthogonal matrix, one algorithm per file."""
