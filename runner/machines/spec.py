"""The input `machine`: YAML that says where the GPUs come from and what they may cost.

Each provider reads its own keys; here are those that all have. Every mistake names its line and key.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Protocol, cast

import msgspec

from ..errors import UserError
from ..yaml_file import Value, parse_yaml, read_yaml
from .model import Limits, Provider, RunnerProgram

PROVIDERS = ("ec2", "ssh", "slurm", "kubernetes")
EXTRAS = ("ec2", "kubernetes")
COMMON = ("provider", "limits", "runner", "organization", "runner-group")
LONGEST_HOURS = 24 * 5
"""A job of a runner of one's own ends after five days: https://docs.github.com/en/actions/reference/limits"""

_ORGANIZATION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,38})")
_PATH = re.compile(r"/[A-Za-z0-9._/+-]{1,200}")
_URL = re.compile(r"https://[A-Za-z0-9._~:/?&=%+-]{1,500}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What the YAML says beside the provider's own keys. `organization` is set where the runner is an organisation's;
    `group` is the id of its group of runners, of which 1 is the default one."""

    provider: str
    limits: Limits
    program: RunnerProgram
    organization: str | None
    group: int


class ProviderModule(Protocol):
    """What a provider's module has: the keys of its own, and its provider."""

    KEYS: tuple[str, ...]

    def provider(self, entries: dict[str, Value], spec: Spec) -> Provider:
        """Read the keys of KEYS. Raises UserError with line and key."""


def extra_of(given: str) -> str:
    """The extra of packages that the provider needs beside the others; empty where it needs none."""
    name = _provider_name(_read(given))
    return name if name in EXTRAS else ""


def read_spec(given: str) -> tuple[Spec, Provider]:
    """The spec and its provider, out of YAML or of the file that `given` names."""
    top = _read(given)
    name = _provider_name(top)
    module = cast("ProviderModule", importlib.import_module(f".{name}", __package__))
    entries = top.mapping((*COMMON, *module.KEYS), required=("limits",))
    spec = Spec(
        provider=name,
        limits=_limits(entries["limits"]),
        program=_program(entries["runner"]) if "runner" in entries else RunnerProgram(folder="/opt/actions-runner"),
        organization=_organization(entries),
        group=entries["runner-group"].whole_number(1) if "runner-group" in entries else 1,
    )
    return spec, module.provider(entries, spec)


def _read(given: str) -> Value:
    text = given.strip()
    if not text:
        raise UserError("machine: is empty; give its YAML, or the path of a file with it")
    return read_yaml(Path(text)) if "\n" not in text and ":" not in text else parse_yaml(text, Path("machine"))


def _provider_name(top: Value) -> str:
    # Before all else: what else may stand there is for the provider to say.
    return top.mapping(required=("provider",))["provider"].choice(PROVIDERS)


def _limits(value: Value) -> Limits:
    minutes = {"idle-minutes": 24 * 60, "register-minutes": 120, "capacity-minutes": 120}
    entries = value.mapping(("max-hours", "max-price", *minutes), required=("max-hours",))
    hours = entries["max-hours"].positive("hours")
    if not 0.1 <= hours <= LONGEST_HOURS:
        entries["max-hours"].error(f"must be between 0.1 and {LONGEST_HOURS}, and is {hours:g}")
    return Limits(
        max_hours=hours,
        max_price=entries["max-price"].positive("US dollars an hour") if "max-price" in entries else None,
        **{
            name.replace("-", "_"): entries[name].whole_number(1, most)
            for name, most in minutes.items()
            if name in entries
        },
    )


def _program(value: Value) -> RunnerProgram:
    entries = value.mapping(("folder", "url", "sha256"))
    if "folder" in entries:
        if len(entries) > 1:
            value.error("has a folder and something to fetch; leave one of them out")
        return RunnerProgram(folder=entries["folder"].matching(_PATH, "a folder of the machine, such as /opt/runner"))
    for name in ("url", "sha256"):
        if name not in entries:
            value.error(f'the key "{name}" is missing; give folder, or url and sha256')
    return RunnerProgram(
        url=entries["url"].matching(_URL, "an address with https://"),
        sha256=entries["sha256"].matching(_SHA256, "a SHA-256 of 64 small hexadecimal digits"),
    )


def _organization(entries: dict[str, Value]) -> str | None:
    if "organization" not in entries:
        return None
    return entries["organization"].matching(_ORGANIZATION, "the name of an organization on GitHub")
