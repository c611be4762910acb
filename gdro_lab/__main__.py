"""`python -m gdro_lab` is the command `gdro`."""

from gdro_lab.cli import main

if __name__ == "__main__":
    main()
