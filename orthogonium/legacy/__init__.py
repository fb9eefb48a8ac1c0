"""Methods as first published, for comparison; independent of the rest of the library."""
