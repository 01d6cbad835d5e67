"""Opens or updates one issue for each distinct failure of a nightly run. Runs where there is no GPU and no log.

    python -m nvfp4_suite.ci.issues night.json        in a workflow, with GitHub's `gh`

`night.json` is what ci/night.py wrote. An issue is known again by the last line of its body, among the open issues with
the label; one that was closed is not opened again, the failure gets a new one. A night opens MOST_NEW issues at most,
and updates all that it knows; what is left over is named in the log. Text that a run has made is shown as code.
Exit code 0: every failure has its issue, or the night has as many as it may. 1: GitHub refuses.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from .markdown import block, inline

LABEL = "nightly"
MOST_NEW = 5
TITLE = 120  # characters
_LAST_LINE = re.compile(r"<!-- nightly ([0-9a-f]{16}) since ([\d-]{10}) ([0-9a-f]{40}) nights (\d+) run (\d+) -->")
_PLAIN = re.compile(r"[^\w .,:;/()\[\]=+-]")  # what a title has none of: it is no place for code


class Refused(Exception):
    """GitHub did not do what it was asked."""


@dataclass(frozen=True)
class Night:
    """The run that issues are about."""

    date: str  # 2026-01-31
    commit: str
    run: int
    url: str
    green: str | None  # the commit of the last nightly run that was green


@dataclass(frozen=True)
class Since:
    """What an issue remembers of its failure: its key, when it was first seen, and in how many nights."""

    key: str
    date: str
    commit: str
    nights: int
    run: int

    def line(self) -> str:
        return f"<!-- nightly {self.key} since {self.date} {self.commit} nights {self.nights} run {self.run} -->"


def key(what: str) -> str:
    return hashlib.sha256(what.encode()).hexdigest()[:16]


def remembered(body: str) -> Since | None:
    """What the last line of an issue's body says; None for an issue that is not one of these."""
    found = _LAST_LINE.fullmatch(body.rstrip().rpartition("\n")[2].strip())
    return Since(found[1], found[2], found[3], int(found[4]), int(found[5])) if found else None


def now(what: str, before: Since | None, night: Night) -> Since:
    """The same after `night`, which may be tried more than once."""
    if before is None:
        return Since(key(what), night.date, night.commit, 1, night.run)
    return replace(before, nights=before.nights + (before.run != night.run), run=night.run)


def title(what: str) -> str:
    return f"Nightly: {_PLAIN.sub('', what)}"[:TITLE]


def body(failure: dict, since: Since, night: Night) -> str:
    """The page of one failure of ci/night.py; its last line is what `remembered` reads."""
    green = f"The last green nightly run was of {night.green}." if night.green else "No nightly run was green yet."
    rows = [f"| {inline(job)} | {inline(which)} |" for job, which in failure["places"]]
    more = failure["count"] - len(rows)
    lines = [
        f"{inline(failure['what'])} fails in [the nightly run of {night.date}]({night.url}), of {night.commit}.",
        f"First seen on {since.date}, of {since.commit}; red in {since.nights} nights so far. {green}",
        "",
        "| job | which |",
        "|---|---|",
        *rows,
        *([f"\nand {more} more."] if more > 0 else []),
        *(["", block(failure["text"])] if failure["text"].strip() else []),
        *(["", "To repeat it:", block(failure["repro"])] if failure["repro"] else []),
        *(["", f"To find the commit, run the workflow *bisect* from {night.green} on."] if night.green else []),
        "",
        since.line(),
    ]
    return "\n".join(lines) + "\n"


def file_issues(failures: list[dict], night: Night) -> list[str]:
    """Opens and updates issues; says what it did, a line each."""
    known = _known()
    opened, lines, left = sum(since.date == night.date for _, since in known.values()), [], []
    for failure in failures:
        number, before = known.get(key(failure["what"]), (None, None))
        since = now(failure["what"], before, night)
        page = body(failure, since, night)
        if number is not None:
            gh("issue", "edit", str(number), "--body-file", "-", stdin=page)
            lines.append(f"updated #{number}: {failure['what']}")
        elif opened < MOST_NEW:
            opened += 1
            named = ("--title", title(failure["what"]), "--label", LABEL)
            url = gh("issue", "create", *named, "--body-file", "-", stdin=page)
            lines.append(f"opened {url.strip()}: {failure['what']}")
        else:
            left.append(failure["what"])
    return [*lines, *(f"no issue, a night opens {MOST_NEW} at most: {what}" for what in left)]


def _known() -> dict[str, tuple[int, Since]]:
    """Key -> (number, what it remembers), of the open issues that are such."""
    listed = gh("issue", "list", "--state", "open", "--label", LABEL, "--limit", "1000", "--json", "number,body")
    found = {}
    for issue in sorted(json.loads(listed), key=lambda one: -one["number"]):  # of two of a key, the older one
        if since := remembered(issue["body"]):
            found[since.key] = (issue["number"], since)
    return found


def last_green(workflow: str, branch: str) -> str | None:
    """The commit of the last successful run of `workflow` on `branch`."""
    choice = ("--workflow", workflow, "--branch", branch, "--status", "success", "--limit", "1")
    runs = json.loads(gh("run", "list", *choice, "--json", "headSha"))
    return runs[0]["headSha"] if runs else None


def gh(*arguments: str, stdin: str = "") -> str:
    """`gh ARGUMENTS`; its output. The only way from here to GitHub."""
    run = subprocess.run(["gh", *arguments], input=stdin, capture_output=True, text=True, timeout=120)
    if run.returncode:
        raise Refused(f"gh {' '.join(arguments[:2])}: {run.stderr.strip()}")
    return run.stdout


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m nvfp4_suite.ci.issues", description="issues of a nightly run")
    parser.add_argument("night", type=Path, metavar="FILE", help="what ci/night.py wrote")
    failures = json.loads(parser.parse_args(arguments).night.read_text(encoding="utf-8"))
    try:
        gh("label", "create", LABEL, "--force", "--description", "red in the nightly run", "--color", "b60205")
        print("\n".join(file_issues(failures, _night())))
    except Refused as refusal:
        print(f"refused: {refusal}", file=sys.stderr)
        return 1
    return 0


def _night() -> Night:
    """Tonight's run, from the variables that GitHub sets."""
    server, repository, run = (os.environ[f"GITHUB_{name}"] for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    green = last_green("nightly.yml", os.environ["GITHUB_REF_NAME"])
    url = f"{server}/{repository}/actions/runs/{run}"
    return Night(time.strftime("%Y-%m-%d", time.gmtime()), os.environ["GITHUB_SHA"], int(run), url, green)


if __name__ == "__main__":
    sys.exit(main())
