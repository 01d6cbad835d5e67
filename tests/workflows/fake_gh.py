"""Stands in for GitHub's `gh`: its state is the file that FAKE_GITHUB names, {"issues": [...], "runs", "calls"}."""

import json
import os
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Does what ci/issues.py asks of `gh`, and nothing else. Every call is written down."""
    path = Path(os.environ["FAKE_GITHUB"])
    github = json.loads(path.read_text())
    github["calls"].append(arguments)
    code = 0
    try:
        print(ANSWERS[tuple(arguments[:2])](github, arguments[2:]))
    except PermissionError as error:
        print(error, file=sys.stderr)
        code = 1
    path.write_text(json.dumps(github))
    return code


def _value(arguments: list[str], name: str) -> str:
    return arguments[arguments.index(name) + 1]


def _list(github: dict, arguments: list[str]) -> str:
    found = [
        one for one in github["issues"] if one["state"] == "open" and _value(arguments, "--label") in one["labels"]
    ]
    return json.dumps([{"number": one["number"], "body": one["body"]} for one in found])


def _create(github: dict, arguments: list[str]) -> str:
    if github.get("refuses"):
        raise PermissionError("HTTP 403: Resource not accessible by integration")
    number, labels = len(github["issues"]) + 1, [_value(arguments, "--label")]
    title = _value(arguments, "--title")
    issue = {"number": number, "state": "open", "title": title, "labels": labels, "body": sys.stdin.read()}
    github["issues"].append(issue)
    return f"https://github.com/o/r/issues/{number}"


def _edit(github: dict, arguments: list[str]) -> str:
    github["issues"][int(arguments[0]) - 1]["body"] = sys.stdin.read()
    return ""


ANSWERS = {
    ("label", "create"): lambda github, arguments: "",
    ("issue", "list"): _list,
    ("issue", "create"): _create,
    ("issue", "edit"): _edit,
    ("run", "list"): lambda github, arguments: json.dumps(github["runs"][:1]),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
