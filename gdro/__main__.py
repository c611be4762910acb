"""`python -m gdro` is the command `gdro`."""

from gdro.cli import main

if __name__ == "__main__":
    main()
