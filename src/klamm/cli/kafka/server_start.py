"""kafka-server-start: a node from server.properties."""

from __future__ import annotations

import sys

from klamm.cli.kafka.script import ToolFailed

_USAGE = "USAGE: kafka-server-start [-daemon] server.properties [--override property=value]*"


def main(args: list[str]) -> int:
    """Run kafka-server-start: `klamm server` by another name."""
    words = list(args)
    if words and words[0] in ("-daemon", "--daemon"):
        return _daemon(words[1:])
    if not words or words[0] in ("-h", "--help"):
        raise ToolFailed(_USAGE)
    file, overrides = words[0], []
    rest = iter(words[1:])
    for word in rest:
        if word == "--override":
            overrides.append(next(rest, ""))
        elif word.startswith("--override="):
            overrides.append(word.removeprefix("--override="))
        # An option of kafka-run-class.sh (the name of the process); it has a value and no meaning here.
        elif word == "-name":
            next(rest, None)
        else:
            raise ToolFailed(f"Found non argument parameters: {word}")
    if any("=" not in override for override in overrides):
        raise ToolFailed("Option override requires a property=value")
    from klamm.cli.command_errors import CommandRefusal
    from klamm.cli.node_runner import serve, set_log_level
    from klamm.model.errors import ConfigError
    from klamm.server.boot.config import load_config
    from klamm.server.boot.config_checks import refuse_open_listeners

    set_log_level("info")
    try:
        config = load_config(file, tuple(overrides))
        refuse_open_listeners(config)
        serve(config)
    except (ConfigError, CommandRefusal) as error:
        raise ToolFailed(f"klamm: {error}") from None
    return 0


def _daemon(words: list[str]) -> int:
    """As the script does: run in the background, with the output in a file."""
    import os
    import subprocess

    # The variables and the file name of kafka-run-class.sh.
    folder = os.environ.get("LOG_DIR", ".")
    os.makedirs(folder, exist_ok=True)
    command = [sys.executable, "-m", "klamm", "kafka-server-start", *words]
    with open(os.path.join(folder, "kafkaServer.out"), "ab") as log:
        subprocess.Popen(  # noqa: S603 - our own program
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    return 0
