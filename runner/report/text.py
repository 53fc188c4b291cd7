"""Text from a run made fit for a terminal, XML, Markdown and spreadsheets.

Kernel names, messages and tracebacks come from traces and from the code under test, so they are untrusted: they may
hold terminal commands, half characters, markup, or ten thousand characters. Nothing reaches a report but through here.
"""

from __future__ import annotations

import re

# Terminal commands, with one or two bytes of introduction: ECMA-48, 5.4 and 8.3.89 (OSC); only whole ones are removed
# whole. https://ecma-international.org/publications-and-standards/standards/ecma-48/
_TERMINAL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"
    r"|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[@-Z\\^_]"
)
# What XML 1.0 does not take as Char (https://www.w3.org/TR/xml/#charsets) or discourages, and what turns the reading
# order around, so that a line can pretend to be another.
_UNWANTED = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane * 0x10000 + 0xFFFE) + chr(plane * 0x10000 + 0xFFFF) for plane in range(17))
    + "]"
)
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")

# Invisible, and no part of a user's name, number or address: it keeps GitHub from making a link of plain text.
_JOINER = "&#8288;"
_MARKDOWN = re.compile(
    r"(?P<url>://)|(?P<www>www\.)|(?P<issue>GH-(?=\d))|(?P<emoji>:(?=[\w+-]{1,40}:))|(?P<user>@)|(?P<number>#)"
    r"|(?P<active>[&<>`*~\[\]|\\$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))|(?P<marker>\A(?:[-+]|\d(?=\d{0,8}[.)](?:\s|\Z))))",
    re.IGNORECASE,
)
_ISSUE_URL = re.compile(r"https://(?:[a-z0-9-]+\.)+[a-z]{2,}(?:/[A-Za-z0-9._~-]+)*/?(?:#[A-Za-z0-9._-]+)?")
_GITHUB_ISSUE = re.compile(r"https://github\.com/[^/]+/([^/]+)/(?:issues|pull)/(\d+)")

# What stands for itself in a line: the runner compares by culture, so that soft hyphens, joiners and other characters
# that nobody sees may stand between those of a command.
_PLAIN = "\x21-\x7e"
_COMMAND = re.compile(rf"#(?=[^{_PLAIN}\n\r]*#[^{_PLAIN}\n\r]*\[)|(?<![^\n\r])[^{_PLAIN}\n\r]*:(?=[^{_PLAIN}\n\r]*:)")
_COMMAND_IN_JSON = re.compile(rf"#(?=[^{_PLAIN}]*\[)")


class Markdown(str):
    """Text that is Markdown already, so the template takes it as it stands."""

    __slots__ = ()


def clean(text: str) -> str:
    """`text` with its lines and tabs, but without terminal commands, control and half characters; valid in XML."""
    return _UNWANTED.sub("", _LINE_END.sub("\n", _TERMINAL.sub("", text)))


def one_line(text: str, limit: int = 1000) -> str:
    """`text` cleaned and on one line, of at most `limit` characters; a cut is shown by `…`."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def cut(text: str, limit: int = 8000) -> str:
    """Lines cleaned and of about `limit` characters at most, more from the end, where a traceback tells the error."""
    text = clean(text).strip("\n")
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 4], text[-(limit - limit // 4) :]
    return f"{head}\n[… {len(text) - len(head) - len(tail)} characters left out …]\n{tail}"


def markdown(text: str, limit: int = 2000) -> Markdown:
    """`text` on one line as GitHub's Markdown that shows just it: no markup, HTML, table border, mention or link.

    It may stand in a sentence, a table's cell, a list's item, or in HTML.
    """
    return Markdown(_MARKDOWN.sub(_escape, one_line(text, limit)))


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    if found["url"]:
        return f":{_JOINER}//"
    if found["www"]:
        return f"{char[:3]}{_JOINER}."
    if found["issue"] or found["emoji"]:
        return char + _JOINER
    return f"&#{ord(char)};" + (_JOINER if found["user"] or found["number"] else "")


def code(text: str, limit: int = 300) -> Markdown:
    """`text` on one line as Markdown code; it may stand where `markdown` may, but not in HTML."""
    line = one_line(text, limit)
    if not line:
        return Markdown("")
    # In a table a border wins over backticks.
    plain = not re.search(r"[`|\\]", line)
    return Markdown(f"`{line}`" if plain else f"<code>{markdown(line, limit)}</code>")


def fence(text: str, limit: int = 8000) -> Markdown:
    """Lines as a fenced Markdown block that nothing in them can end."""
    lines = cut(text, limit)
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", lines)), default=0))
    return Markdown(f"{ticks}text\n{lines}\n{ticks}")


def is_issue_url(url: str) -> bool:
    """Whether `url` may become a link: https, a host, a path, and no character that could end or disguise a link."""
    return len(url) <= 200 and _ISSUE_URL.fullmatch(url) is not None


def issue_name(url: str) -> str:
    """An issue's URL as people write it: `pytorch#167353`; any other text as it is."""
    found = _GITHUB_ISSUE.fullmatch(url) if is_issue_url(url) else None
    return f"{found[1]}#{found[2]}" if found else url


def issue_link(url: str) -> Markdown:
    """An issue's URL as a Markdown link where it is safe as one, else as plain text."""
    if not is_issue_url(url):
        return markdown(url, 200)
    # Neither name can hold what ends the text of a link, and GitHub makes no second link within one.
    return Markdown(f"[{issue_name(url)}]({url})")


def spreadsheet(text: str) -> str:
    """`text` on one line, with a quote before what a spreadsheet would run as a formula (CWE-1236).

    A line break in a cell is correct CSV, but would let what follows it pass for a line of its own in a job's log.
    """
    line = inert(" ".join(clean(text).split()))
    return "'" + line if line[:1] in ("=", "+", "-", "@") else line


def inert(text: str) -> str:
    """Lines in which GitHub's runner sees no command, by a blank in what would make one; others as they are.

    It takes a line that begins with `::`, and, as in its first versions, `##[` anywhere in a line:
    https://github.com/actions/runner/blob/main/src/Runner.Common/ActionCommand.cs
    """
    return _COMMAND.sub(lambda found: f"{found.group()} ", text)


def inert_json(document: str) -> str:
    """A JSON document of one line in which GitHub's runner sees no command, with the same content."""
    return _COMMAND_IN_JSON.sub(r"\\u0023", document)
