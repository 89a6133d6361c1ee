"""What an agent of these tests does, read from behaviours.json: the first word of a task's first message names it.

A behaviour is a list of rounds, one for each message to the task, and a round is a list of steps. Any other first word
is echoed. What an agent keeps over its restarts is in the folder of its first argument: the addresses it listens at,
and its tasks.
"""

import json
import os
import pathlib
import sys

BEHAVIOURS = json.loads(pathlib.Path(__file__).with_name("behaviours.json").read_text())
ECHO = [[{"artifact": "echo", "name": "echo", "halves": True}, {"state": "completed"}]]

FOLDER = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else None


def steps(said):
    """The steps of the round that the last of the messages begins, given the texts of all messages to the task."""
    name = (said[0].split() or [""])[0]
    rounds = BEHAVIOURS.get(name, ECHO)
    for step in rounds[min(len(said), len(rounds)) - 1]:
        if "halves" in step:
            text = said[-1]
            yield {**step, "text": text[: len(text) // 2], "last": False}
            yield {**step, "text": text[len(text) // 2 :], "append": True, "last": True}
        elif "answers" in step:
            yield {**step, "text": " ".join(said[1:])}
        else:
            yield step


def write(name, text):
    """Writes a file that is there wholly or not at all, whenever the process is killed."""
    path = FOLDER / name
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


def kept(pattern):
    return [path.read_text() for path in sorted(FOLDER.glob(pattern))] if FOLDER else []


def port(name):
    """The port that a listener of this name had before, or 0."""
    return int((kept(f"{name}.port") or ["0"])[0])


def keep_port(name, number):
    if FOLDER:
        write(f"{name}.port", str(number))


# Nobody connects from this address, so no client takes the port of an agent that is away.
HOST = "127.0.0.2" if FOLDER else "127.0.0.1"
