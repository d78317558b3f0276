"""What mkdocs is told besides mkdocs.yml: pages from outside of docs/, links between them, and a
reference of public names.

Pages are written to be read on GitHub: links are between files of the repository. Here those to
published files are turned into links of the site; of the others (source, tests) the words stay.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))
from taciturn import _ROOMS  # noqa: E402

OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "benchmarks/README.md",
    "src/taciturn/starts/README.md",
)
OUTSIDE += (
    "experiments/README.md",
    "experiments/*/README.md",
    "experiments/*/*.png",
    "experiments/*/figures/*.svg",
    "examples/*.py",
)
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")
FENCED = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    for path in sorted(path for pattern in OUTSIDE for path in ROOT.glob(pattern)):
        files.append(
            File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        )
    return files


def on_page_markdown(text: str, page: Any, files: Files, **_: Any) -> str:
    here = page.file.src_uri
    inside = files.get_file_from_path(here).abs_src_path.startswith(str(ROOT / "docs"))
    repository = f"docs/{here}" if inside else here

    def on_the_site(link: re.Match[str]) -> str:
        words, target, anchor = link.groups(default="")
        target = posixpath.normpath(
            posixpath.join(posixpath.dirname(repository), target)
        ).removeprefix("docs/")
        if files.get_file_from_path(target) is None:
            return words
        return f"[{words}]({posixpath.relpath(target, posixpath.dirname(here) or '.')}{anchor})"

    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(on_the_site, part) for part in parts[::2]]
    if here == "api.md":
        names = (
            f"::: taciturn.{place}\n    options:\n      heading: {name}\n      toc_label: {name}\n"
            for name, place in _ROOMS.items()
        )
        parts += ["\n\n## Every name\n\n", *(f"{one}\n" for one in names)]
    return "".join(parts)
