"""An error of the library names the argument that is wrong; the command line writes its flag."""

import pytest
from typer.testing import CliRunner

import taciturn as tt
from taciturn.cli import app
from taciturn.cli.command_classes import name_flags
from taciturn.data.vocabulary import DataError


def test_a_wrong_argument_is_named_in_python_and_its_flag_in_a_terminal(tmp_path):
    text = tmp_path / "messages.csv"
    text.write_text("user,text\nann,one two three\n")
    with pytest.raises(DataError, match=r"^`held_out` must lie between 0 and 0\.9, not 2\.0"):
        tt.build_population(text, tmp_path / "people", held_out=2.0)
    words = ["data", "build", str(text), "--out", str(tmp_path / "people"), "--held-out", "nan"]
    refused = CliRunner().invoke(app, words)
    assert str(refused.exception).startswith("--held-out must lie between 0 and 0.9, not nan")


@pytest.mark.parametrize(
    ("sentence", "command", "shown"),
    [
        ("name another `folder`", "build", "name another --out"),
        ("name another `folder`", "train", "name another --run"),
        ("add `non_private=True`", "export", "add --non-private"),
        ("with `same_people_as=old people`", "build", "with --same-people-as old people"),
        ("name it with `columns.time`", "build", "name it with --time-column"),
        (
            "resume it with `tt.resume`; then `tt.resume()`",
            "train",
            "resume it with --resume; then add --resume",
        ),
        (
            "a folder that `tt.train` has made",
            "train",
            "a folder that `taciturn train` has made",
        ),
    ],
)
def test_an_argument_becomes_the_flag_of_its_command(sentence, command, shown):
    assert name_flags(sentence, command) == shown
