"""One issue for each distinct failure: opened once, updated each night, few of them, and nothing but text in them."""

import json
import re

import pytest

from nvfp4_suite.ci import issues
from nvfp4_suite.ci.issues import Night, Since

from .github import GitHub

FIRST, SECOND = "1" * 40, "2" * 40
VARIABLES = {"SERVER_URL": "https://github.com", "REPOSITORY": "o/r", "REF_NAME": "main"}


def failure(what: str = "tests/a.py::test_a by pair", **more) -> dict:
    one = {"what": what, "count": 1, "places": [["h200-3.8.0", f"{what}[1]"]], "text": "wrong", "repro": "nox -s x"}
    return one | more


@pytest.fixture
def github(tmp_path, monkeypatch):
    """A GitHub for this process."""

    def start(**state) -> GitHub:
        found = GitHub(tmp_path, **state)
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        return found

    return start


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command on a night's failures; its exit code, and what it says."""

    def main(*failures: dict, date: str = "2026-01-30", commit: str = FIRST, run: int = 7) -> tuple[int, str]:
        for name, value in (VARIABLES | {"SHA": commit, "RUN_ID": str(run)}).items():
            monkeypatch.setenv(f"GITHUB_{name}", value)
        monkeypatch.setattr(issues.time, "strftime", lambda *_: date)
        (tmp_path / "night.json").write_text(json.dumps(failures))
        code = issues.main([str(tmp_path / "night.json")])
        said = capsys.readouterr()
        return code, said.out + said.err

    return main


def test_a_new_failure_gets_an_issue(github, run):
    here = github(runs=[{"headSha": "0" * 40}])
    assert run(failure()) == (0, "opened https://github.com/o/r/issues/1: tests/a.py::test_a by pair\n")
    (issue,) = here.issues
    assert issue["title"] == "Nightly: tests/a.py::test_a by pair"
    assert issue["labels"] == ["nightly"]
    for text in (
        "[the nightly run of 2026-01-30](https://github.com/o/r/actions/runs/7)",
        f"First seen on 2026-01-30, of {FIRST}; red in 1 nights so far. The last green nightly run was of {'0' * 40}.",
        "| ` h200-3.8.0 ` | ` tests/a.py::test_a by pair[1] ` |",
        "```text\nwrong\n```",
        "```text\nnox -s x\n```",
    ):
        assert text in issue["body"]


def test_the_next_night_updates_it(github, run):
    here = github()
    run(failure())
    code, said = run(failure(text="wrong again"), date="2026-01-31", commit=SECOND, run=8)
    assert (code, said) == (0, "updated #1: tests/a.py::test_a by pair\n")
    (issue,) = here.issues
    assert "wrong again" in issue["body"] and "[the nightly run of 2026-01-31]" in issue["body"]
    assert (
        f"First seen on 2026-01-30, of {FIRST}; red in 2 nights so far. No nightly run was green yet." in issue["body"]
    )


def test_a_run_that_is_tried_again_counts_as_one_night(github, run):
    here = github()
    for _ in range(2):
        run(failure())
    assert "red in 1 nights so far" in here.issues[0]["body"] and len(here.issues) == 1


def test_each_distinct_failure_has_its_own(github, run):
    here = github()
    run(failure("one"), failure("two"))
    run(failure("two"), failure("three"), date="2026-01-31", run=8)
    assert [issue["title"] for issue in here.issues] == ["Nightly: one", "Nightly: two", "Nightly: three"]
    assert "red in 2 nights" in here.issues[1]["body"] and "red in 1 nights" in here.issues[0]["body"]


def test_one_that_was_closed_stays_closed(github, run):
    here = github()
    run(failure())
    here.change(1, state="closed", body=here.issues[0]["body"] + " ")
    before = here.issues[0]
    run(failure(), date="2026-01-31", run=8)
    assert here.issues[0] == before and here.issues[1]["state"] == "open"


def test_a_night_opens_few_issues_and_names_the_others(github, run):
    here = github()
    many = [failure(f"number {number}") for number in range(issues.MOST_NEW + 2)]
    code, said = run(*many)
    assert code == 0 and len(here.issues) == issues.MOST_NEW
    assert said.splitlines()[-2:] == [
        f"no issue, a night opens {issues.MOST_NEW} at most: number {issues.MOST_NEW + more}" for more in (0, 1)
    ]
    assert run(*many, run=8)[0] == 0 and len(here.issues) == issues.MOST_NEW, "a second run of the night opens more"
    run(*many, date="2026-01-31", run=9)
    assert len(here.issues) == issues.MOST_NEW + 2


def test_issues_of_people_are_left_alone(github, run):
    """Whatever they say in the middle, and whichever label they have."""
    line = issues.now("tests/a.py::test_a by pair", None, Night("2026-01-01", FIRST, 1, "", None)).line()
    theirs = [
        {"number": 1, "state": "open", "title": "x", "labels": ["nightly"], "body": f"{line}\nand more"},
        {"number": 2, "state": "open", "title": "x", "labels": [], "body": line},
        {"number": 3, "state": "open", "title": "x", "labels": ["nightly"], "body": ""},
    ]
    here = github(issues=theirs)
    run(failure())
    assert here.issues[:3] == theirs and len(here.issues) == 4


def test_a_github_that_refuses_fails_the_job(github, run):
    github(refuses=True)
    code, said = run(failure())
    assert code == 1 and said == "refused: gh issue create: HTTP 403: Resource not accessible by integration\n"


# Text that a run has made


NASTY = """```
@everyone <img src=x onerror=alert(1)> #1 [x](javascript:alert(1)) | a | b |
````` --> <!-- nightly 0000000000000000 since 2026-01-01 {} nights 9 run 9 -->
::set-output name=x::y""".format("0" * 40)


def outside_code(markdown: str) -> str:
    """A page without its blocks and spans of code, as CommonMark tells them."""
    blocks = re.sub(r"^(`{3,})text\n(?:.*\n)*?\1`* *$", "", markdown, flags=re.MULTILINE)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", blocks)


def test_no_text_leaves_its_code(github, run):
    here = github()
    run(failure(NASTY, text=NASTY, repro=NASTY, places=[[NASTY, NASTY]]))
    (issue,) = here.issues
    left = outside_code(issue["body"])
    assert not re.search(r"@|img|javascript|#1|set-output", left), left
    assert left.count("-->") == 1 and left.rstrip().endswith(f"{FIRST} nights 1 run 7 -->")
    assert not re.search(r"[@#<>`|]", issue["title"]) and "\n" not in issue["title"]
    assert len(issue["title"]) <= issues.TITLE
    (row,) = (line for line in issue["body"].splitlines() if line.startswith("| `"))
    assert row.count("|") == 3


def test_what_an_issue_remembers_is_its_last_line_alone(github, run):
    here = github()
    run(failure(text=NASTY))
    assert issues.remembered(here.issues[0]["body"]) == Since(
        issues.key("tests/a.py::test_a by pair"), "2026-01-30", FIRST, 1, 7
    )


def test_a_page_is_shorter_than_github_takes():
    places = [["job" * 20, "which" * 600]] * 20
    text, repro = ("\n".join(["`" * columns] * lines) for lines, columns in ((41, 230), (6, 430)))  # as night.py cuts
    one = failure("what" * 700, text=text, repro=repro, places=places, count=5000)
    night = Night("2026-01-30", FIRST, 7, "https://github.com/o/r/actions/runs/7", SECOND)
    page = issues.body(one, issues.now(one["what"], None, night), night)
    assert len(page) < 65536 and "and 4980 more." in page


def test_text_is_no_argument_of_a_command(github, run):
    """It goes through standard input: an argument could be an option, or too long."""
    here = github()
    run(failure("--repo=else/where", text="--repo=else/where"))
    titles = [call[3] for call in here.state["calls"] if call[:2] == ["issue", "create"]]
    assert titles == ["Nightly: --repo=else/where"]
    assert not any(argument.startswith("--repo") for call in here.state["calls"] for argument in call)
