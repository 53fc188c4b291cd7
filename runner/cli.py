"""The command line: each sub-command is a few lines over the parts."""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .arguments import parser
from .errors import SymmemCheckError


def process() -> int:
    """`main` as a whole process, whose end is near when this returns."""
    try:
        return main()
    finally:
        gc.freeze()  # else the interpreter's last collection looks through everything, for 15 ms and for nothing


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status. Errors end in one line on stderr, without a traceback."""
    _prepare_streams()
    given, script_arguments = _split(list(sys.argv[1:] if arguments is None else arguments))
    command = given[0] if given else None
    parsed, unknown = parser(command).parse_known_args(given, argparse.Namespace(script_arguments=script_arguments))
    if unknown:
        hint = "; the arguments of --script stand at the end, after --" if getattr(parsed, "script", None) else ""
        parsed.own.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    try:
        status = COMMANDS[parsed.command](parsed)
        sys.stdout.flush()  # here, where it can still be told that it fails
    except SymmemCheckError as error:
        _tell(f"symmem-check: {error}")
        return error.exit_status
    except BrokenPipeError:  # the reader of our output, such as head, has left: end as a program in a pipe does
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        _tell(f"symmem-check: {error.filename or 'an output'}: {error.strerror or error}")
        _drop_output()
        return 2
    except KeyboardInterrupt:
        _tell("symmem-check: interrupted")
        return 130
    return status


def _prepare_streams() -> None:
    """Make stdout and stderr take all that is printed: closed ones nothing, others any character in some form."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller; it must not become the next file that is opened
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Let what is still to be written go nowhere: the interpreter would fail on it once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Take what follows `--` from the arguments of `run`: it is the training script's, whatever it looks like."""
    if arguments[:1] != ["run"] or "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def _run(parsed: argparse.Namespace) -> int:
    from .report.terminal import print_run_table
    from .run import EXIT_STATUS, run
    from .settings import run_settings

    settings = run_settings(parsed)
    if settings.script is None:
        result = run(settings, _tell)
    else:
        from .script import run_script

        result = run_script(settings, settings.script, _tell)
    print_run_table(result, sys.stdout)
    _tell(f"symmem-check: reports are in {settings.out}")
    return EXIT_STATUS[result.verdict.word]


def _classify(parsed: argparse.Namespace) -> int:
    from .traces import read_traces, write_json

    traces = read_traces(parsed.traces, warn=lambda line: _tell(f"symmem-check: {line}"))
    for error in traces.errors:
        _tell(f"symmem-check: {error.file}: {error.message}")
    if parsed.format == "json":
        write_json(traces)
    elif parsed.format == "csv":
        from .report.collectives import write_collectives_csv

        write_collectives_csv(traces.files, sys.stdout)
    else:
        from .report.collectives import print_collectives_table

        print_collectives_table(traces.files, traces.coverage, sys.stdout)
    if traces.exit_status == 3:
        _tell("symmem-check: no collective was found, so nothing could be measured")
    return traces.exit_status


def _compare(parsed: argparse.Namespace) -> int:
    from .compare import compare_files

    comparison = compare_files(parsed.base, parsed.head, warn=lambda line: _tell(f"symmem-check: {line}"))
    if parsed.format == "json":
        import msgspec

        from .report.text import inert_json

        sys.stdout.write(inert_json(msgspec.json.encode(comparison).decode()) + "\n")
    else:
        from .report.comparison import print_comparison

        print_comparison(comparison, sys.stdout)
    return 1 if comparison.regressed else 0


def _report(parsed: argparse.Namespace) -> int:
    from .compare import result_file
    from .report.terminal import print_run_table
    from .result import read_result
    from .run import EXIT_STATUS

    result = read_result(result_file(parsed.result))
    if parsed.junit is not None:
        from .report.junit import junit_xml

        _write(parsed.junit, junit_xml(result, extended=parsed.junit_properties), "--junit")
    if parsed.markdown is not None:
        from .github.settings import glossary_url
        from .report.markdown import summary_markdown

        _write(parsed.markdown, summary_markdown(result, glossary=glossary_url()), "--markdown")
    if parsed.page is not None:
        from .report.page import write_page

        write_page(result, parsed.page)
    print_run_table(result, sys.stdout)
    if parsed.annotations:
        from .report.annotations import annotation_lines

        for line in annotation_lines(result, failing=frozenset(result.gate.fail_on)):
            print(line)
    if parsed.comment:
        from .github.comment import post_comment
        from .github.settings import github_settings

        outcome = post_comment(result, github_settings(parsed))
        _tell(f"symmem-check: comment {outcome.action}: {outcome.notice or outcome.url or ''}")
        if outcome.notice and parsed.annotations:
            from .report.annotations import Annotation, command

            print(command(Annotation("notice", f"comment {outcome.action}", outcome.notice)))
    return EXIT_STATUS[result.verdict.word]


def _write(path: Path, text: str, flag: str) -> None:
    from .errors import UserError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror or error}); give another {flag} FILE") from None


def _fetch(parsed: argparse.Namespace) -> int:
    from .github.artifacts import fetch_result, find_baseline
    from .github.settings import github_settings

    settings = github_settings(parsed, parsed.out)
    if parsed.what == "result":
        found: Path | None = fetch_result(settings)
    else:
        found = find_baseline(settings, tell=lambda line: _tell(f"symmem-check: {line}"))
    if found is not None:
        print(found)
    return 0


def _doctor(parsed: argparse.Namespace) -> int:
    from .doctor import doctor

    diagnosis = doctor(parsed.python, parsed.nccl, tell=_tell)
    if parsed.format == "json":
        import msgspec

        from .report.text import inert_json

        sys.stdout.write(inert_json(msgspec.json.encode(diagnosis).decode()) + "\n")
    else:
        from .report.doctor import print_diagnosis

        print_diagnosis(diagnosis, sys.stdout)
    return diagnosis.verdict.exit_status


def _machine(parsed: argparse.Namespace) -> int:
    from .machines.command import run_command

    return run_command(parsed, tell=lambda line: _tell(f"symmem-check: {line}"))


def _tell(line: str) -> None:
    """Print one line of progress or trouble to stderr; names in it can give no commands, and a full disk is no end."""
    from .report.text import inert

    with contextlib.suppress(OSError):
        print(inert("".join(char if char.isprintable() else "�" for char in line)), file=sys.stderr, flush=True)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run, "classify": _classify, "compare": _compare, "report": _report, "fetch": _fetch, "doctor": _doctor,
    "machine": _machine,
}  # fmt: skip
