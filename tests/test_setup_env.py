"""How the scripts come by Java: which one they take, what they install, what they say without.

The functions of ``scripts/setup_env.sh`` run in a real bash whose PATH holds only what a test puts
there: javas that tell a version, package managers that write down how they were called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import ROOT

BASH = shutil.which("bash")
TOOLS = ("bash", "cat", "chmod", "dirname", "env", "mkdir", "sed", "sleep")


class Machine:
    """A folder that is the whole PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        (folder / "venv").mkdir()
        for name in TOOLS:
            found = shutil.which(name)
            assert found is not None, name
            self.add(name, f'exec {found} "$@"')
        self.user(0)

    def add(self, name: str, script: str) -> Path:
        """A command."""
        path = self.folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def user(self, number: int) -> None:
        """Who is at work; 0 is root."""
        self.add("id", f"echo {number}")

    def manager(self, name: str, *, has: str = "", java: str = "17.0.9") -> None:
        """A package manager that installs a java with the package that it has."""
        target = self.bin / "java"
        self.add(
            name,
            f'echo "{name} $*" >> {self.folder}/calls\n'
            f'test "{has}" || exit 1\n'
            f'case "$*" in *{has or "nothing"}) ;; *) exit 1 ;; esac\n'
            f"printf '#!/bin/sh\\n%s\\n' '{java_script(java)}' > {target}\n"
            f"chmod 755 {target}",
        )

    def java(self, version: str, home: str = "") -> Path:
        """A java on the PATH, or in a home of its own."""
        path = self.add(f"../{home}/bin/java" if home else "java", java_script(version))
        return path.parent.parent

    def ensure(self, **variables: str) -> subprocess.CompletedProcess[str]:
        """Source the script and ask for Java; stdout says which one Spark would start."""
        script = (
            f'. {ROOT}/scripts/setup_env.sh; VENV="{self.folder}/venv"; ensure_java; code=$?; '
            'echo "home=${JAVA_HOME:-none}"; exit $code'
        )
        return subprocess.run(
            [str(BASH), "-c", script], capture_output=True, text=True, timeout=60, check=False,
            stdin=subprocess.DEVNULL,
            env={"PATH": str(self.bin), "JAVA_HOMES": str(self.folder / "homes/*"), **variables},
        )  # fmt: skip

    @property
    def calls(self) -> list[str]:
        """How the package managers were called."""
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def java_script(version: str) -> str:
    return f'echo "openjdk version \\"{version}\\" 2025-04-15" >&2'


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_that_is_new_enough_is_left_alone(machine: Machine, version: str) -> None:
    machine.java(version)
    machine.manager("apt-get", has="openjdk-17-jre-headless")
    done = machine.ensure()
    assert (done.returncode, done.stdout, done.stderr) == (0, "home=none\n", "")
    assert machine.calls == []


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "16"])
def test_an_older_java_counts_as_missing(machine: Machine, version: str) -> None:
    machine.java(version)
    machine.manager("apt-get", has="openjdk-17-jre-headless")
    assert machine.ensure().returncode == 0
    assert len(machine.calls) == 1


def test_java_home_is_honoured(machine: Machine) -> None:
    """Also when the one on the PATH is too old."""
    machine.java("11.0.2")
    home = machine.java("21.0.1", home="mine")
    done = machine.ensure(JAVA_HOME=str(home))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"home={home}\n", "")


def test_a_java_home_that_is_too_old_gives_way_to_the_path(machine: Machine) -> None:
    """Spark would start the one of JAVA_HOME: it must be gone, and the user told so."""
    machine.java("17.0.1")
    done = machine.ensure(JAVA_HOME=str(machine.java("11.0.2", home="mine")))
    assert (done.returncode, done.stdout) == (0, "home=none\n")
    assert "JAVA_HOME" in done.stderr


def test_a_newer_java_beside_an_older_one_is_found(machine: Machine) -> None:
    machine.java("11.0.2")
    home = machine.java("17.0.1", home="homes/java-17")
    done = machine.ensure()
    assert (done.returncode, done.stdout, machine.calls) == (0, f"home={home.resolve()}\n", [])


MANAGERS: list[tuple[str, str, str]] = [
    ("apt-get", "openjdk-17-jre-headless",
     "-y -qq -o DPkg::Lock::Timeout=60 install --no-install-recommends"),
    ("dnf", "java-17-openjdk-headless", "-y -q install"),
    ("yum", "java-17-openjdk-headless", "-y -q install"),
    ("zypper", "java-17-openjdk-headless", "--non-interactive install --no-recommends"),
    ("pacman", "jre17-openjdk-headless", "-S --noconfirm --needed"),
    ("apk", "openjdk17-jre-headless", "add --no-cache"),
    ("brew", "openjdk@17", "install --quiet"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "package", "words"), MANAGERS, ids=[m[0] for m in MANAGERS])
def test_the_package_manager_is_asked_without_a_question(
    machine: Machine, name: str, package: str, words: str
) -> None:
    machine.manager(name, has=package)
    done = machine.ensure()
    assert done.returncode == 0, done.stderr
    assert machine.calls == [f"{name} {words} {package}"]
    assert done.stderr.splitlines() == [
        f"No Java 17 or newer was found; installing one with {name} (once) ..."
    ]


def test_the_first_package_that_exists_is_taken(machine: Machine) -> None:
    machine.manager("apt-get", has="openjdk-21-jre-headless", java="21.0.1")
    assert machine.ensure().returncode == 0
    assert [call.split()[-1] for call in machine.calls] == [
        "openjdk-17-jre-headless", "openjdk-21-jre-headless"
    ]  # fmt: skip


def test_a_package_with_a_java_that_is_too_old_does_not_end_the_search(machine: Machine) -> None:
    machine.manager("apt-get", has="default-jre-headless", java="11.0.2")
    assert machine.ensure().returncode == 1


def test_lists_of_packages_are_fetched_where_there_are_none(machine: Machine) -> None:
    """As in a fresh container: nothing can be installed before the first update."""
    target, seen = machine.bin / "java", machine.folder / "updated"
    machine.add(
        "apt-get",
        f'echo "apt-get $*" >> {machine.folder}/calls\n'
        f'case "$*" in *update) echo > {seen}; exit 0 ;; esac\n'
        f"test -e {seen} || exit 100\n"
        f"printf '#!/bin/sh\\n%s\\n' '{java_script('17.0.9')}' > {target}; chmod 755 {target}",
    )
    assert machine.ensure().returncode == 0
    assert [call.split()[-1] for call in machine.calls] == [
        "openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless", "update",
        "openjdk-17-jre-headless",
    ]  # fmt: skip


def test_one_sentence_says_what_to_install_if_nothing_can(machine: Machine) -> None:
    """No package manager at all: one line, and a failure."""
    done = machine.ensure()
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("Spark needs Java 17 or newer: install a JRE") and "JAVA_HOME" in line


@pytest.mark.parametrize("works", [True, False])
def test_sudo_is_used_only_if_it_asks_for_nothing(machine: Machine, works: bool) -> None:
    machine.user(1000)
    machine.manager("dnf", has="java-17-openjdk-headless")
    refuse = "" if works else "echo a password is required >&2; exit 1; "
    log = f'echo "sudo $*" >> {machine.folder}/sudo; '
    machine.add("sudo", f'{log}{refuse}test "$1" = -n || exec sleep 1000; shift; exec "$@"')
    machine.add("true", "exit 0")
    done = machine.ensure()
    assert (done.returncode == 0) is works, done.stderr
    assert bool(machine.calls) is works
    asked = (machine.folder / "sudo").read_text().splitlines()
    assert all(line.startswith("sudo -n ") for line in asked)


def run_script(name: str, folder: Path, *args: str, **variables: str) -> Any:
    """A copy of the scripts around a stand-in for the Python of .venv, which notes its calls."""
    (folder / "scripts").mkdir(exist_ok=True)
    for path in (name, "scripts/setup_env.sh", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / path, folder / path)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f'#!/bin/sh\necho "$PWD: $*" >> {folder}/python-calls\n')
    python.chmod(0o755)
    return subprocess.run(
        [str(BASH), str(folder / name), *args], capture_output=True, text=True, timeout=60,
        check=False, cwd=folder.parent, stdin=subprocess.DEVNULL,
        env={**os.environ, "JAVA_HOMES": "", **variables},
    )  # fmt: skip


@pytest.fixture
def no_java(machine: Machine) -> dict[str, str]:
    """The variables of a machine with neither Java nor a package manager."""
    for name in ("cksum", "id", "grep"):
        found = shutil.which(name)
        assert found is not None, name
        machine.add(name, f'exec {found} "$@"')
    return {"PATH": str(machine.bin), "JAVA_HOME": ""}


def test_the_tests_fail_without_java_instead_of_leaving_some_out(
    machine: Machine, no_java: dict[str, str]
) -> None:
    folder = machine.folder / "repository"
    folder.mkdir()
    done = run_script("run_tests.sh", folder, **no_java)
    assert done.returncode == 1 and "Spark needs Java 17 or newer" in done.stderr
    assert "-m pytest" not in (folder / "python-calls").read_text()


def test_the_demonstration_goes_on_without_java(
    machine: Machine, no_java: dict[str, str]
) -> None:
    """It is for its audit to say unknown. Files are named from where the caller stands."""
    folder = machine.folder / "repository"
    folder.mkdir()
    done = run_script("run_demo.sh", folder, "--seed", "4", **no_java)
    assert done.returncode == 0 and "Spark needs Java 17 or newer" in done.stderr
    assert "pyspark alone is about 450 MB" in done.stderr
    calls = (folder / "python-calls").read_text().splitlines()
    assert calls[-1] == f"{machine.folder}: -P -m simulations.demo --seed 4"
    assert any(call.endswith("[test,spark]") for call in calls)


def test_what_is_installed_with_more_is_not_installed_again(
    machine: Machine, no_java: dict[str, str]
) -> None:
    """A run without the audit after one with it starts at once; a changed setup.cfg does not."""
    folder = machine.folder / "repository"
    folder.mkdir()
    calls = folder / "python-calls"
    for arguments, count in ((["--no-audit"], 1), ([], 2), (["--no-audit"], 2), ([], 2)):
        assert run_script("run_demo.sh", folder, *arguments, **no_java).returncode == 0
        assert calls.read_text().count("pip install") == count
    for stamp in (folder / ".venv").glob("installed-*.txt"):
        stamp.write_text("of another setup.cfg")
    run_script("run_demo.sh", folder, **no_java)
    assert calls.read_text().count("pip install") == 3


def test_without_the_audit_neither_spark_nor_java_is_wanted(
    machine: Machine, no_java: dict[str, str]
) -> None:
    folder = machine.folder / "repository"
    folder.mkdir()
    done = run_script("run_demo.sh", folder, "--no-audit", **no_java)
    assert done.returncode == 0 and "Java" not in done.stderr
    assert "[test]" in (folder / "python-calls").read_text()
