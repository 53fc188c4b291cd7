"""A strict reader of YAML files that people write: every mistake is told with its line and its key.

`yaml.safe_load` forgets the lines, keeps the last of two equal keys, and turns `on`, `010` and `1:30` into
something else than was written. This reader keeps YAML's nodes and hands out strings and numbers only as asked.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

import yaml

from .errors import UserError

MAX_BYTES = 1 << 20
MAX_DEPTH = 20

_TAG = "tag:yaml.org,2002:"
_WHOLE_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def did_you_mean(word: str, allowed: Collection[str]) -> str:
    """What is allowed, and the nearest of it: `; did you mean "step"? Allowed: none, step`."""
    near = difflib.get_close_matches(word, list(allowed), n=1, cutoff=0.6)
    hint = f'; did you mean "{near[0]}"?' if near else "."
    return f"{hint} Allowed: {', '.join(allowed)}"


def quoted(word: str) -> str:
    """A word from a file as it may stand in a one-line message: short, control characters escaped."""
    return ascii(word if len(word) <= 60 else word[:57] + "...")


class Value:
    """One node of the file with its place: `key` is the dotted way to it, `line` counts from 1."""

    def __init__(self, path: Path, key: str, node: yaml.Node) -> None:
        self.path = path
        self.key = key
        self.line: int = node.start_mark.line + 1
        self._node = node

    def error(self, problem: str) -> NoReturn:
        """Raise a UserError that names the file, the line and the key."""
        raise UserError(f"{self.path}, line {self.line}: {self.key + ': ' if self.key else ''}{problem}")

    def mapping(self, allowed: Collection[str] | None = None, required: Collection[str] = ()) -> dict[str, Value]:
        """The entries of a mapping, in the file's order; keys outside `allowed` and missing ones are errors."""
        if not isinstance(self._node, yaml.MappingNode):
            self.error(f"must be a mapping (key: value), and is {self._what()}")
        entries: dict[str, Value] = {}
        for key_node, value_node in self._node.value:
            key = Value(self.path, self.key, key_node).text("a key")
            entry = Value(self.path, f"{self.key}.{key}" if self.key else key, value_node)
            entry.line = key_node.start_mark.line + 1
            if key in entries:
                entry.error(f"stands twice; the first is in line {entries[key].line}")
            if allowed is not None and key not in allowed:
                entry.key = self.key
                entry.error(f"unknown key {quoted(key)}{did_you_mean(key, allowed)}")
            entries[key] = entry
        for key in required:
            if key not in entries:
                self.error(f'the key "{key}" is missing')
        return entries

    def items(self) -> Iterator[Value]:
        """The items of a list."""
        if not isinstance(self._node, yaml.SequenceNode):
            self.error(f"must be a list, and is {self._what()}")
        for number, node in enumerate(self._node.value):
            yield Value(self.path, f"{self.key}[{number}]", node)

    def is_list(self) -> bool:
        """Whether a list was written here."""
        return isinstance(self._node, yaml.SequenceNode)

    def is_mapping(self) -> bool:
        """Whether a mapping was written here."""
        return isinstance(self._node, yaml.MappingNode)

    def must_be_true(self) -> None:
        """Refuse anything but `true`: of a condition that is asked for or left out."""
        if self._tag() != "bool" or self._node.value != "true":
            self.error(f"must be true, and is {self._what()}; leave the key out where it does not matter")

    def text(self, what: str = "text") -> str:
        """A string as it was written; numbers, `true`, `on`, dates and `null` are errors unless quoted."""
        if self._tag() != "str":
            self.error(f"must be {what}, and is {self._what()}; put quotes around it if it is meant as text")
        return str(self._node.value)

    def choice(self, allowed: Collection[str]) -> str:
        """A string that must be one of `allowed`."""
        word = self.text("one of " + ", ".join(allowed))
        if word not in allowed:
            self.error(f"unknown value {quoted(word)}{did_you_mean(word, allowed)}")
        return word

    def whole_number(self, minimum: int, maximum: int = 10**18) -> int:
        """A decimal whole number; `010`, `0x10`, `1_000` and `1:30`, which YAML also takes for numbers, are errors."""
        written = self._node.value if self._tag() == "int" else ""
        if not (isinstance(written, str) and _WHOLE_NUMBER.fullmatch(written)):
            self.error(f"must be a whole number, and is {self._what()}")
        number = int(written)
        if not minimum <= number <= maximum:
            limit = f"at least {minimum}" if number < minimum else f"at most {maximum}"
            self.error(f"must be {limit}, and is {number}")
        return number

    def seconds(self) -> float:
        """A time in seconds: a finite number above 0."""
        return self.positive("seconds")

    def positive(self, of: str) -> float:
        """A finite number above 0, `of` something."""
        try:
            number = float(self._node.value) if self._tag() in ("int", "float") else math.nan
        except (TypeError, ValueError):
            number = math.nan
        if not (math.isfinite(number) and number > 0):
            self.error(f"must be a number of {of} above 0, and is {self._what()}")
        return number

    def boolean(self) -> bool:
        """`true` or `false`."""
        if self._tag() != "bool" or self._node.value not in ("true", "false"):
            self.error(f"must be true or false, and is {self._what()}")
        return bool(self._node.value == "true")

    def matching(self, pattern: re.Pattern[str], what: str) -> str:
        """A string that a whole pattern fits; `what` says in words which those are."""
        text = self.text(what)
        if not pattern.fullmatch(text):
            self.error(f"must be {what}, and is {quoted(text)}")
        return text

    def text_or_number(self) -> str | int:
        """A string, or a whole number that is not negative."""
        return self.whole_number(0) if self._tag() == "int" else self.text("text or a whole number")

    def _tag(self) -> str:
        tag = str(self._node.tag)
        return tag[len(_TAG) :] if tag.startswith(_TAG) and isinstance(self._node, yaml.ScalarNode) else tag

    def _what(self) -> str:
        if isinstance(self._node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self._node, yaml.SequenceNode):
            return "a list"
        tag = self._tag()
        names = {
            "null": "empty",
            "bool": "true or false",
            "int": "a number",
            "float": "a number",
            "timestamp": "a date",
        }
        written = quoted(str(self._node.value))
        return "empty" if tag == "null" else f"{names[tag]} ({written})" if tag in names else written


def read_yaml(path: Path) -> Value:
    """The top of a YAML file.

    Raises UserError, with the line where there is one: the file can't be read, is above 1 MiB, is not UTF-8, is
    no YAML, is empty, holds several documents, is nested deeper than 20, or uses anchors and aliases (a few lines
    of them can stand for billions of nodes).
    """
    return parse_yaml(_read_text(path), path)


def parse_yaml(text: str, path: Path) -> Value:
    """The top of YAML that came as text; `path` stands for it in messages. Raises UserError as `read_yaml` does."""
    try:
        _refuse_bombs(path, text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}" if mark else ""
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise UserError(f"{path}{place}: not valid YAML: {problem}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if node is None:
        raise UserError(f"{path}: the file is empty")
    return Value(path, "", node)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except ValueError:  # a NUL in it
        raise UserError(f"{quoted(str(path))}: is no path of a file") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise UserError(f"{path}: is above {MAX_BYTES >> 20} MiB, which is no file that a person wrote")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}, line {line}: not UTF-8; save the file as UTF-8") from None


def _refuse_bombs(path: Path, text: str) -> None:
    """Look at the flat list of events first: composing nodes is recursive and follows aliases."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        place = f"{path}, line {event.start_mark.line + 1 if event.start_mark else 1}"
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UserError(f"{place}: anchors (&) and aliases (*) are not allowed; write the value out")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise UserError(f"{place}: nested deeper than {MAX_DEPTH}")
