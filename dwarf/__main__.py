"""`python -m dwarf`: the same command line as the `dwarf` script."""

from dwarf.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
