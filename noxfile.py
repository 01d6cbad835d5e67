# /// script
# requires-python = ">=3.11"
# dependencies = ["nox>=2025.5.1"]
# ///
"""The front door: one session per use. `nox -l` lists them; arguments after `--` go to what the session runs."""

import argparse
import os
from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
nox.options.default_venv_backend = "virtualenv"  # with pip, which finds CPU builds of torch where uv does not look
nox.options.reuse_venv = "yes"

PROJECT = nox.project.load_toml("pyproject.toml")


@nox.session
def lint(session: nox.Session) -> None:
    """Ruff: rules and format. Of workflows: form, timeouts, security. The form of the list of runners."""
    session.install(*group("lint"))
    session.run("ruff", "check", *(session.posargs or ["."]))
    session.run("ruff", "format", "--check", *(session.posargs or ["."]))
    workflows = sorted(map(str, Path(".github", "workflows").glob("*.yml")))
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        session.run("check-jsonschema", "--builtin-schema", schema, *workflows)
    session.run("check-jsonschema", "--schemafile", "ci/runners.schema.json", "ci/runners.json")
    session.run("zizmor", "--offline", "--persona", "auditor", ".github")


@nox.session
def tests(session: nox.Session) -> None:
    """All that needs no compiler and no GPU: kernels run in Triton's interpreter."""
    rest = install_tests_with_triton(session)
    in_parallel(session, "--engine", "interpreter", *rest)


@nox.session(name="compile-gates")
def compile_gates(session: nox.Session) -> None:
    """Compile what plans choose, for every GPU it is for; needs neither torch nor a GPU. `-- --help` says more."""
    session.install(*group("compile-gates"))
    packages = [f"--packages={version}={path}" for version, path in other_tritons(session).items()]
    gates = ("python", "-m", "nvfp4_suite.ci.compile_gates", *packages, *session.posargs)
    session.run(*gates, env={"PYTHONPATH": children_path()})


@nox.session(name="gate-tests")
def gate_tests(session: nox.Session) -> None:
    """Whether the compile gates list what they should and are red where they should be; needs no torch either."""
    session.install(*group("compile-gates"))
    in_parallel(session, "--engine", "compile", "tests/compile", *session.posargs)


@nox.session(name="gpu-tests", default=False)
def gpu_tests(session: nox.Session) -> None:
    """The tests that run kernels, on this host's GPUs; fails without one. `--no-venv` takes the host's own packages.

    `-- --tier smoke|ci|all`, `-- --sanitize`, `-- --triton 3.9.0`, and whatever pytest takes. A host without nox runs
    the command that this session prints.
    """
    rest = install_tests_with_triton(session)
    session.run("python", "-m", "nvfp4_suite.ci.gpu_tests", *rest, env={"PYTHONPATH": children_path()})


@nox.session(default=False)
def peers(session: nox.Session) -> None:
    """Our quantizer recipes against the producers' own packages, byte for byte, on the CPU."""
    session.install(*group("peers"))
    session.run("python", "-m", "pytest", "--engine", "peers", "tests/peers", *session.posargs)


@nox.session(default=False)
def golden(session: nox.Session) -> None:
    """Verify digests, on every GPU of this host where it has one; or record or explain them: `-- --help` says more."""
    rest = install_tests_with_triton(session)
    tool = ("python", "-m", "nvfp4_suite.ci.golden", *(rest or ["verify"]))
    session.run(*tool, env={"PYTHONPATH": children_path()})


@nox.session(default=False)
def bench(session: nox.Session) -> None:
    """Times layers and stages on this host's GPU, right ones alone; fails without one. `-- --help` says more."""
    rest = install_tests_with_triton(session)
    session.run("python", "-m", "nvfp4_suite.bench", *rest, env={"PYTHONPATH": children_path()})


@nox.session(default=False)
def gpus(session: nox.Session) -> None:
    """Lists this host's GPUs; `-- --expect "NVIDIA H200 (sm_90)"` fails where they are others."""
    session.install(*group("gpus"))
    session.run("python", "-m", "nvfp4_suite.ci.gpus", *session.posargs)


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """The jobs of a workflow, from ci/runners.json: `-- --tier nightly`."""
    session.install(*group("matrix"))
    session.run("python", "-m", "nvfp4_suite.ci.matrix", *session.posargs)


@nox.session(name="bisect-request", default=False)
def bisect_request(session: nox.Session) -> None:
    """Whether the bisect that somebody asks for may run on a runner of ours."""
    session.install(*group("matrix"))
    session.run("python", "-m", "nvfp4_suite.ci.bisect_request", *session.posargs)


@nox.session(default=False)
def night(session: nox.Session) -> None:
    """What a nightly run owes, and what of it went wrong: `-- artifacts --matrix JSON`."""
    session.run("python", "-m", "nvfp4_suite.ci.night", *session.posargs)


@nox.session(default=False)
def issues(session: nox.Session) -> None:
    """Opens or updates an issue for each failure of a nightly run; needs GitHub's `gh`, logged in."""
    session.run("python", "-m", "nvfp4_suite.ci.issues", *session.posargs)


@nox.session(default=False)
def report(session: nox.Session) -> None:
    """One HTML page and a Markdown summary of any number of runs' results. `-- --help` says more."""
    session.install(*group("report"))
    session.run("python", "-m", "nvfp4_suite.ci.report", *session.posargs, env={"PYTHONPATH": children_path()})


@nox.session(name="report-tests", default=False)
def report_tests(session: nox.Session) -> None:
    """The report's page in a Chromium: this host's (apt-get install chromium), or that of `playwright install`."""
    session.install(*group("report-tests"))
    session.run("python", "-m", "pytest", "--engine", "browser", "tests/browser", *session.posargs)


@nox.session(default=False)
def bisect(session: nox.Session) -> None:
    """Finds the commit, or the Triton release, since which a kernel is wrong. `-- --help` explains."""
    if any(argument.startswith("--launch") for argument in session.posargs) and session.venv_backend != "none":
        session.install(*group("compile-gates"))  # machine code needs no torch
    else:
        install_tests(session)
    others = other_tritons(session)
    if "3.6.0" in others and session.venv_backend != "none":
        session.install("numpy<2.4")  # beside a later one its interpreter does not run
    packages = [f"--packages={version}={path}" for version, path in others.items()]
    session.run(
        "python", "-m", "nvfp4_suite.ci.bisect", *packages, *session.posargs, env={"PYTHONPATH": children_path()}
    )


def group(name: str) -> list[str]:
    """The requirements of one dependency group of pyproject.toml."""
    return nox.project.dependency_groups(PROJECT, name)


def other_tritons(session: nox.Session) -> dict[str, Path]:
    """By version, where each Triton of `--triton` and `--over` is, but for the session's own; installs them."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--triton", default="")
    parser.add_argument("--over", default="")
    options = parser.parse_known_args(session.posargs)[0]
    asked = [*options.triton.split(","), *options.over.removeprefix("triton=").split(",")]
    others = [version for version, pins in tritons().items() if pins != group("triton")]
    found = {}
    for version in others:
        if "all" in asked or version in asked or version.rpartition(".")[0] in asked:
            found[version] = Path(".nox", "tritons", version).absolute()
            if not (found[version] / f"triton-{version}.dist-info").exists():
                session.install("--no-deps", "--target", str(found[version]), f"triton=={version}")
    return found


def install_tests(session: nox.Session) -> None:
    """Torch and the test tools, then our Triton over the one that a build of torch may have pinned."""
    if session.venv_backend != "none":
        session.install(*group("tests"))
        session.install("--no-deps", *group("triton"))


def install_tests_with_triton(session: nox.Session) -> list[str]:
    """The same, with the Triton of --triton where one is named. Returns the other arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--triton")
    options, rest = parser.parse_known_args(session.posargs)
    known = tritons()
    if options.triton and (options.triton not in known or session.venv_backend == "none"):
        session.error(f"--triton is {options.triton}, but should be of {', '.join(known)}, and needs an environment")
    install_tests(session)
    if options.triton:
        session.install("--no-deps", *known[options.triton])
    return rest


def tritons() -> dict[str, list[str]]:
    """Each supported Triton by its version: what is installed for it."""
    groups = [group(name) for name in PROJECT["dependency-groups"] if name.partition("-")[0] == "triton"]
    return {requirements[0].partition("==")[2]: requirements for requirements in groups}


def in_parallel(session: nox.Session, *arguments: str) -> None:
    """Pytest with one worker per core, and one thread per worker."""
    workers = ("--numprocesses", "auto", "--dist", "worksteal")
    env = {"OMP_NUM_THREADS": "1"}
    session.run("python", "-m", "pytest", *workers, *arguments, env=env)


def children_path() -> str:
    """PYTHONPATH for our own tools and the processes that they start: this tree first."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    nox.main()
