"""What a release is checked for, by `make release-check`."""
