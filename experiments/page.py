#!/usr/bin/env python
"""Write experiments/README.md and its figures out of the committed results: `make papers`."""

from lib.page import page
from lib.run_lists import HERE


def main() -> None:
    for path, content in page().items():
        (HERE / path).parent.mkdir(exist_ok=True)
        (HERE / path).write_text(content)
        print(f"experiments/{path}")


if __name__ == "__main__":
    main()
