#!/usr/bin/env python
"""Write experiments/README.md, its figures and README's rows out of the committed results:
`make papers`.
"""

from lib.front_page import README, write_front_page
from lib.page import page
from lib.run_lists import HERE


def main() -> None:
    for path, content in page().items():
        (HERE / path).parent.mkdir(exist_ok=True)
        (HERE / path).write_text(content)
        print(f"experiments/{path}")
    README.write_text(write_front_page())
    print(README.name)


if __name__ == "__main__":
    main()
