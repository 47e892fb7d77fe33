"""python -m sextant: the command."""

from ._program import main

main()
