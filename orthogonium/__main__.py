"""`python -m orthogonium`: the command line."""

from orthogonium.cli import main

if __name__ == "__main__":
    main()
