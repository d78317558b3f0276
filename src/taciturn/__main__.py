"""`python -m taciturn`, for those who have no `taciturn` on their path."""

from taciturn.cli import main

main()
