"""`python -m mktune` is the `mktune` program."""

from mktune.cli import main

main()
