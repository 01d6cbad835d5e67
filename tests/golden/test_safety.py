"""What must not be lost or pass unseen: killed recorders, two at once, damaged files, edits by hand, merges by git."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from nvfp4_suite.ci import codegen, exact, golden, golden_file, plans_file, provenance, recorded, recording_file
from nvfp4_suite.ci.golden_file import Damaged
from nvfp4_suite.ci.outcomes import Outcome, Recording

from .processes import CPU, GPU
from .tool import DIGESTS, KEYS, NAME, PLAN, recorded_in

TREE = golden.ROOT
FILES = ("exact.json", "recorded/sm_90/3.8.0.json")


@pytest.fixture
def folder(file, engine) -> Path:
    """golden/ after a recording of each kind."""
    engine(DIGESTS)
    for name in ("reference", "gpu"):
        assert golden.main(["record", "--engine", name]) == 0
    return file.parent


KILLED = """
import os, signal, sys
from pathlib import Path
from nvfp4_suite.ci import golden_file
path, at = Path(sys.argv[1]), sys.argv[2]
document = golden_file.load(path)
next(value for value in document.values() if value and isinstance(value, dict)).popitem()
setattr(Path, at, lambda *of, **more: os.kill(os.getpid(), signal.SIGKILL))
with golden_file.locked(path.parent):
    golden_file.write(path, document)
"""


WRITES = [*((name, "replace") for name in (*FILES, "plans.json", "codegen/3.8.0.json")), (FILES[0], "write_text")]


@pytest.mark.parametrize(("name", "at"), WRITES)
def test_a_recorder_that_is_killed_while_it_writes_loses_nothing(folder, name, at):
    """The file is as before, no lock is left, and what was half written goes with the next recording."""
    path = folder / name
    if name == "plans.json":
        for each in (name, plans_file.SCHEMA):
            shutil.copy(TREE / "golden" / each, folder)
    if name.startswith("codegen"):
        shutil.copytree(TREE / "golden" / "codegen", folder / "codegen")
        codegen.write(
            path,
            "3.8.0",
            {("ptxas 12.9", f"sm_90-{one}"): "ptx=1 registers=8 sass=1 target=sm_90a" for one in "ab"},
            [],
        )
    before = path.read_bytes()
    killed = subprocess.run([sys.executable, "-c", KILLED, path, at], cwd=TREE, stderr=subprocess.PIPE, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert path.read_bytes() == before and len([*path.parent.glob("*.tmp")]) == (at == "replace")
    with golden_file.locked(path.parent):
        golden_file.write(path, golden_file.load(path))
    assert path.read_bytes() == before and [*path.parent.glob("*.tmp")] == []


RECORDER = """
import sys
from pathlib import Path
from nvfp4_suite.ci import exact, golden, golden_due, golden_file
golden.ROOT = Path(sys.argv[1])
golden_due.known_exact = lambda: exact_keys
read, locked = exact.read, golden_file.locked
def slow(path):
    found = read(path)
    print("read", flush=True)
    sys.stdin.readline()
    return found
def told(folder):
    print("at the lock", flush=True)
    return locked(folder)
exact_keys = set(read(golden.ROOT / "golden" / "exact.json"))  # what cases have takes torch to find out
exact.read, golden_file.locked = slow, told
sys.exit(golden.main(["record", "--from", sys.argv[2]]))
"""


def test_two_recorders_at_once_both_record(folder, tmp_path, monkeypatch):
    """The second waits until the first, which has read the file, has written it."""
    commit_all(tmp_path)
    monkeypatch.undo()
    sources = provenance.sources_digest(tmp_path)
    started, by_hand = [], {name: value for name, value in os.environ.items() if name != "CI"}  # which never records
    for name, facts in (("interpreter", CPU | {"numpy": "2", "ml_dtypes": "0.5", "triton": "3.8.0"}), ("sm_80", GPU)):
        path = tmp_path / "golden" / f"{name}.recording"
        recording_file.write(path, Recording(name, facts, sources, DIGESTS))
        command = [sys.executable, "-c", RECORDER, tmp_path, path]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=TREE, env=by_hand, **pipes))
        assert started[-1].stdout.readline() == "at the lock\n"
        if len(started) == 1:
            assert started[0].stdout.readline() == "read\n"
        started[-1].stdin.write("\n" * (len(started) - 1))
        started[-1].stdin.flush()
    first, second = started
    with suppress(subprocess.TimeoutExpired):  # without a lock it would be done by now, and the first would undo it
        second.wait(2)
    outputs = [first.communicate("\n"), second.communicate()]
    assert [first.returncode, second.returncode] == [0, 0], outputs
    for entry in exact.read(tmp_path / "golden" / "exact.json").values():
        assert entry["confirmed_by"].keys() == {"reference", "interpreter", "sm_80 triton 3.8.0", "sm_90 triton 3.8.0"}


CONFLICT = "<<<<<<< ours\n=======\n>>>>>>> theirs\n"
DAMAGES = {
    "half written": (lambda text: text[: len(text) // 2], "it is no JSON"),
    "empty": (lambda text: "", "it is no JSON"),
    "a conflict left in": (lambda text: text.replace('"entries"', CONFLICT + '"entries"'), "it is no JSON"),
    "a list": (lambda text: "[]", "it is a list, but should be an object"),
    "no entries": (lambda text: '{"arch": "sm_90", "triton": "3.8.0", "changes": []}', "an entry .*lacks 'entries'"),
    "a digest edited": (lambda text: re.sub(r'("digest": ")[0-9a-f]{8}', r"\g<1>abababab", text, count=1), "its check"),
    "a fact edited": (lambda text: text.replace('"driver": "580"', '"driver": "581"', 1), "its check"),
    "a check edited": (lambda text: re.sub(r'("check": ")[0-9a-f]{8}', r"\g<1>abababab", text, count=1), "its check"),
    "a check removed": (lambda text: re.sub(r'"check": "[0-9a-f]*", ', "", text, count=1), "its check"),
    "a line copied to another key": (lambda text: copied(text), "its check"),
    "a line twice": (lambda text: twice(text), "twice"),
}


def copied(text: str) -> str:
    """The first GPU's line of one key stands at the next one, too."""
    lines = re.findall(r'\{"assembler".*\}', text)
    return text.replace(lines[1], lines[0], 1)


def twice(text: str) -> str:
    """A GPU's first line, which a merge kept from both sides."""
    line = re.search(r'\n +"[^"\n]+": \{"assembler".*\}', text)[0]
    return text.replace(line, f"{line},{line}", 1)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_or_edited_file_is_refused_in_one_line_and_left_as_it_is(folder, engine, capsys, name, damage):
    path, (change, message) = folder / name, DAMAGES[damage]
    text = path.read_text()
    damaged = change(text)
    assert damaged != text
    path.write_text(damaged)
    engine(DIGESTS)
    for command in (["verify", "--engine", "gpu"], ["record", "--engine", "gpu"], ["prune"], ["explain", "random"]):
        capsys.readouterr()
        assert golden.main(command) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert re.match(f"refused: {path.name} is not as the tool wrote it: .*{message}", line), line
        assert path.read_text() == damaged


def test_a_history_that_does_not_lead_to_the_digest_is_refused(folder, engine):
    engine(DIGESTS | {KEYS[0]: "b" * 64}, real="f" * 64)
    assert golden.main(["record", "--engine", "gpu", "--reason", "because"]) == 0
    for name, read in zip(FILES, (exact.read, recorded.read), strict=True):
        path = folder / name
        read(path)
        path.write_text(re.sub(r'("new": ")[0-9a-f]{8}', r"\g<1>cdcdcdcd", path.read_text(), count=1))
        with pytest.raises(Damaged, match=r"the changes of .* do not lead to its digest"):
            read(path)


def test_a_file_of_another_architecture_or_triton_is_refused(folder):
    for other in ("sm_80/3.8.0.json", "sm_90/3.9.0.json"):
        path = folder / "recorded" / other
        path.parent.mkdir(exist_ok=True)
        shutil.copy(folder / FILES[1], path)
        with pytest.raises(Damaged, match=r"it says that it is for sm_90 with Triton 3.8.0"):
            recorded.read(path)


def git(root: Path, *arguments: str) -> subprocess.CompletedProcess:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    return subprocess.run(["git", *identity, *arguments], cwd=root, capture_output=True, text=True)


def commit_all(root: Path) -> None:
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "one"]):
        assert git(root, *command).returncode == 0


def test_git_merges_recordings_of_neighbouring_keys_and_of_two_engines(folder, tmp_path, engine, capsys):
    """A key between two others on each branch, and a confirmation of each key on each branch."""
    shutil.copy(TREE / ".gitattributes", tmp_path)
    path, (entries, _) = folder / FILES[1], recorded_in(folder / FILES[0])
    first, second = sorted(entries)[1:3]
    recorded.write(path, {name: entry for name, entry in entries.items() if name not in (first, second)}, [])
    commit_all(tmp_path)
    before = exact.read(folder / FILES[0])
    for branch, name, arch in (("ours", first, "sm_80"), ("theirs", second, "sm_100")):
        git(tmp_path, "checkout", "--quiet", "-b", branch, "main")
        merged = exact.merge(Recording(arch, GPU, "", DIGESTS), before, reason=None, commit="")
        exact.write(folder / FILES[0], merged)
        recorded.write(path, recorded.read(path)[0] | {name: entries[name]}, [])
        git(tmp_path, "commit", "--quiet", "--all", "--message", branch)
    merge = git(tmp_path, "merge", "--no-edit", "ours")
    assert merge.returncode == 0, merge.stdout
    assert recorded.read(path)[0] == entries
    engines = {"reference", *(f"{arch} triton 3.8.0" for arch in ("sm_80", "sm_90", "sm_100"))}
    assert all(entry["confirmed_by"].keys() == engines for entry in exact.read(folder / FILES[0]).values())
    assert golden.main(["prune"]) == 0
    assert path.read_text() == recorded.text("sm_90", "3.8.0", entries, [])
    assert (folder / FILES[0]).read_text() == exact.text(exact.read(folder / FILES[0]))


def test_a_digest_that_two_branches_changed_is_refused_after_the_merge(folder, tmp_path, engine):
    shutil.copy(TREE / ".gitattributes", tmp_path)
    commit_all(tmp_path)
    path, (entries, _) = folder / FILES[1], recorded_in(folder / FILES[0])
    for branch, letter in (("ours", "a"), ("theirs", "b")):
        git(tmp_path, "checkout", "--quiet", "-b", branch, "main")
        outcome = {NAME: Outcome(letter * 64, plan=PLAN)}
        changed = recorded.merge(Recording("sm_90", GPU, "", {}, outcome), entries, [], reason=branch, commit="c" * 40)
        recorded.write(path, *changed)
        git(tmp_path, "commit", "--quiet", "--all", "--message", branch)
    git(tmp_path, "merge", "--no-edit", "ours")
    with pytest.raises(Damaged, match=f"it has {NAME} twice; keep the line that is right|it is no JSON"):
        recorded.read(path)
