"""`klamm schema` before it asks a registry."""

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli


@pytest.mark.parametrize("command", ["put", "check", "diff"])
@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_file_is_refused_with_what_to_do(command, text, tmp_path):
    path = tmp_path / "empty.avsc"
    path.write_text(text)
    for file, given in ((str(path), None), ("-", text)):
        result = CliRunner().invoke(
            cli, ["schema", command, "s", file, "--registry", "http://127.0.0.1:1"], input=given
        )
        name = "the standard input" if file == "-" else str(path)
        assert (result.exit_code, f"{name} is empty: write the schema into it" in result.output) == (1, True), (
            result.output
        )
