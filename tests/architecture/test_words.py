"""The words that CONTRIBUTING.md asks us to avoid stand nowhere: not in a string, a docstring or a
comment, and not on a page.
"""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
# What each row of the table in CONTRIBUTING.md looks like in a sentence.
AVOIDED = {
    "go on with, goes on": r"\b(go|goes|going|went) on\b(?! the)",
    "cut off, killed half-way": r"\bcut off\b|\bhalf-way\b",
    "whole numbers": r"\bwhole numbers?\b",
    "signs": r"\bwords (and|or) signs\b|\bsigns (and|or) words\b",
    "diary, log of turns": r"\bdiar(y|ies)\b|\blogs? of turns\b",
    "made-up users": r"\bmade[- ]up\b",
    "X is no Y, X is none": (
        r"(?<!here )\b(is|are|was|were) ((?-i:none\b)|no (?!longer|more|less|larger|smaller|better|"
        r"worse|faster|slower|object))"
    ),
    # The other three are also meant well: a reader finds where they are not.
    "so many, such, of those, what came": r"\bso many\b",
    "nobody, whoever (for one who acts)": r"\bwhoever\b",
    "it is said, is told": r"\bit is said\b|\b(is|are) told\b(?! (from|apart))",
    "take the noise off, put shares together": (
        r"\b(take|takes|taking|took) the noise off\b|\b(put|puts|putting) (shares|them|it) together"
    ),
    "mend, spare (keystrokes)": r"\bmend(s|ed|ing)?\b|\bspare[sd]\b",
    "in any company, whoever came": r"\bin any company\b",
    "comes to, comes about": r"\bcomes? about\b|\bcomes to\b(?! light)",
    "X alone (after the noun)": (
        r"(?<!let )(?<!leave )(?<!left )(?<!stand )(?<!stands )(?<!is )(?<!are )(?<!it )\balone\b"
    ),
    "a model of one's own": r"\bof one's own\b",
    "chance": r"\bchances?\b",
}
# Rows that no pattern finds: a reader does.
FOUND_BY_READING = {"Of the runs. With the scores. (as a sentence)", "leave X out"}
# What a pattern finds that is meant, by file, with the reason.
MEANT: dict[str, dict[str, str]] = {
    "experiments/lib/paper_values.py": {'"alone"': "the key of a row"},
    "experiments/popov2018/figures.py": {'"alone"': "the key of a row"},
    "src/taciturn/privacy/simulation.py": {"by an algorithm of one's own": "ledgers say so"},
    "src/taciturn/runs/tuning.py": {"made-up-users": "the name of a folder that is there already"},
}

TEXT_TOKENS = {
    tokenize.STRING,
    tokenize.COMMENT,
    getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING),
}
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("*/README.md")]
    # CONTRIBUTING has the table, and CHANGELOG quotes what things were called.
    if path not in (CONTRIBUTING, ROOT / "CHANGELOG.md")
)
FOLDERS = ("src/taciturn", "examples", "experiments", "benchmarks")
PROGRAMS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def rows_of_the_table() -> list[str]:
    table = CONTRIBUTING.read_text().partition("| not | but |")[2].partition("\n\n")[0]
    lines = table.splitlines()[2:]
    return [line.split("|")[1].strip() for line in lines]


def texts(path: Path) -> list[str]:
    """Return what is read in a file, and not run: each paragraph or row of a table as one line."""
    content = path.read_text()
    if path.suffix != ".py":
        return paragraphs(content)
    tokens = tokenize.generate_tokens(io.StringIO(content).readline)
    strings = [token.string for token in tokens if token.type in TEXT_TOKENS]
    return [paragraph for string in strings for paragraph in paragraphs(string)]


def paragraphs(content: str) -> list[str]:
    """Join what is wrapped, so that a phrase is found across the end of a line."""
    parts = re.split(r"\n\s*\n|\n(?=\s*[|#>-])|\n```.*\n", content)
    return [" ".join(part.split()) for part in parts]


def find_avoided(lines: list[str]) -> list[tuple[str, str]]:
    """Return (row, line) for every line that has a word to avoid."""
    found = []
    for line in lines:
        for row, pattern in AVOIDED.items():
            if re.search(pattern, line, re.IGNORECASE):
                found.append((row, line.strip()))
    return found


@pytest.mark.parametrize("path", [*PROGRAMS, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_words_to_avoid_stand_nowhere(path):
    name = str(path.relative_to(ROOT))
    lines = texts(path)
    for meant in MEANT.get(name, {}):
        lines = [line.replace(meant, "") for line in lines]
    assert find_avoided(lines) == []


def test_every_row_of_the_table_is_looked_for():
    assert set(rows_of_the_table()) == set(AVOIDED) | FOUND_BY_READING


def test_what_is_meant_is_there():
    for name, phrases in MEANT.items():
        for phrase in phrases:
            assert any(phrase in line for line in texts(ROOT / name)), (name, phrase)


@pytest.mark.parametrize(
    ("line", "row"),
    [
        ("so the run cannot go on", "go on with, goes on"),
        ("rows were cut off", "cut off, killed half-way"),
        ("a report is no text", "X is no Y, X is none"),
        ("after so many seconds", "so many, such, of those, what came"),
        ("devices are told to return", "it is said, is told"),
        ("for the curator alone", "X alone (after the noun)"),
        ("with a chance of 2⁻⁸⁰", "chance"),
    ],
)
def test_words_to_avoid_are_found(line, row):
    """The twins that must fail."""
    assert [name for name, _ in find_avoided([line])] == [row]


@pytest.mark.parametrize(
    "line",
    [
        "there is no device that may take part",
        "it is no longer needed",
        "such as a keyboard",
        "a user who stands alone",
        "going on the record",
    ],
)
def test_usual_words_are_not_found(line):
    assert find_avoided([line]) == []


def test_code_is_not_read_as_a_sentence(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("chance = 1  # a probability\n")
    assert find_avoided(texts(program)) == []
    program.write_text("probability = 1  # a chance\n")
    assert len(find_avoided(texts(program))) == 1


def test_a_phrase_is_found_across_the_end_of_a_line():
    assert find_avoided(paragraphs("Tell the\ncurator of whole\nnumbers.")) != []
