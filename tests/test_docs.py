"""What the pages say is so: their commands run and print what they show, their links lead somewhere, their tables are those of the
committed figures, and the site builds without a warning."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import tiny
from tests.support.cli_process import run_main

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WITH_COMMANDS = [page for page in PAGES if "```console\n" in page.read_text()]
LONG = "# long"
"""In the comment behind a command that would take long, or needs another machine."""


@dataclass(frozen=True)
class Command:
    """A line of a page that a reader may paste. `shown` are the lines that the page says it prints."""

    line: str
    shown: tuple[str, ...]

    @property
    def argv(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def commands(text: str) -> Iterator[Command]:
    """The commands of a page's console blocks, in order; a block with another word behind `console` is not run."""
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        assert block.startswith("$ "), block
        for part in block[2:].split("\n$ "):
            line, *shown = part.strip("\n").split("\n")
            yield Command(line.strip(), tuple(shown))


def said_by(argv: list[str], folder: Path) -> str:
    """What a command prints. Fails where it does not end with exit code 0."""
    if argv[0] == "onnx-fa":
        done = run_main("onnx_fa.cli.command", argv[1:], folder)
    else:
        own = str(Path(sys.executable).parent / argv[0])
        done = subprocess.run([own, *argv[1:]], cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stdout}{done.stderr}"
    return str(done.stdout)


def check_options(argv: list[str], folder: Path) -> None:
    """That a command exists and has these options, without running it."""
    assert argv[0] == "onnx-fa"
    words = [a for a in argv[1:3] if re.fullmatch(r"[a-z]+", a)][: 2 if argv[1] == "zoo" else 1]
    known = said_by(["onnx-fa", *words, "--help"], folder)
    for option in (a for a in argv if a.startswith("--")):
        assert option.split("=")[0] in known, f"{shlex.join(argv)}: no option {option}"


def test_commands_run_and_print_what_is_shown(tmp_path: Path) -> None:
    tiny.encoder(tmp_path / "model.onnx")
    tiny.attention(tmp_path / "router.onnx", wrong=True)
    said: dict[str, str] = {}  # by command: what several pages show is run once
    for page in WITH_COMMANDS:
        for command in commands(page.read_text()):
            if LONG in command.line:
                check_options(command.argv, tmp_path)
                continue
            if command.line not in said:
                said[command.line] = said_by(command.argv, tmp_path)
            lines = [line.rstrip() for line in said[command.line].splitlines()]
            missing = [line for line in command.shown if line.rstrip() not in lines]
            assert not missing, f"{page.name}: {command.line} does not print {missing}, but\n" + "\n".join(lines)


def test_a_page_that_says_something_else_is_noticed(tmp_path: Path) -> None:
    found = list(commands("```console\n$ onnx-fa --version\nonnx-fa x\n$ onnx-fa tune --no-such  # long\n```\n"))
    assert [c.argv for c in found] == [["onnx-fa", "--version"], ["onnx-fa", "tune", "--no-such"]]
    assert found[0].shown == ("onnx-fa x",) and "onnx-fa x" not in said_by(found[0].argv, tmp_path).splitlines()
    with pytest.raises(AssertionError, match="no option --no-such"):
        check_options(found[1].argv, tmp_path)


def test_links_lead_to_files() -> None:
    dead = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s#:]+)(?:#[^)\s]*)?\)", page.read_text()):
            if not (page.parent / link).exists():
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert not dead


def test_code_names_pages_that_are_there() -> None:
    command = ["git", "ls-files", "*.py", "*.toml", "*.sh"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    own = re.compile(r"(?<![\w/])docs/[\w/.-]+\.(?:md|json)")
    dead = []
    for name in names:
        text = (ROOT / name).read_text() if (ROOT / name).is_file() else ""
        dead += [f"{name}: {page}" for page in own.findall(text) if not (ROOT / page).exists()]
    assert not dead


def test_tables_are_those_of_the_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import results_table

    remedy = "python scripts/results_table.py --tables"
    for page, text in results_table.pages().items():
        assert page.read_text() == text, f"{page.relative_to(ROOT)} is older than its figures: {remedy}"


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference" / "api.html").is_file()
