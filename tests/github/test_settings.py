"""The settings of the GitHub side, from flags and from the variables that Actions sets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from runner.errors import UserError
from runner.github.events import read_payload
from runner.github.settings import GithubSettings, add_github_arguments, github_settings, glossary_url

from .fake import TOKEN
from .shapes import EVENTS, event

ACTIONS = {
    "GITHUB_REPOSITORY": "octo/train", "GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": "https://ghe.example/api/v3",
    "GITHUB_SERVER_URL": "https://ghe.example", "GITHUB_EVENT_NAME": "pull_request", "GITHUB_RUN_ID": "30433642",
    "GITHUB_RUN_NUMBER": "12", "GITHUB_RUN_ATTEMPT": "2", "GITHUB_SHA": "f" * 40, "GITHUB_BASE_REF": "main",
    "GITHUB_WORKFLOW_REF": "octo/train/.github/workflows/gate.yml@refs/pull/7/merge", "GITHUB_REF_NAME": "7/merge",
    "GITHUB_REF_TYPE": "branch", "GITHUB_EVENT_PATH": str(EVENTS / "pull_request.opened.json"),
}  # fmt: skip


def made(*flags: str, **more: str | None) -> GithubSettings:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_github_arguments(parser)
    environment = {name: value for name, value in (ACTIONS | more).items() if value is not None}
    return github_settings(parser.parse_args(flags), environment=environment)


def test_as_actions_sets_them() -> None:
    settings = made()
    assert settings.api_url == "https://ghe.example/api/v3" and settings.server_url == "https://ghe.example"
    assert (settings.run_id, settings.run_number, settings.run_attempt) == (30433642, 12, 2)
    assert settings.workflow == ".github/workflows/gate.yml"
    assert settings.base_branch == "main" and settings.comment_key == "default" and settings.pull_request is None
    assert settings.payload.pull_request is not None and settings.payload.pull_request.number == 2
    assert settings.token.value == TOKEN and TOKEN not in repr(settings)


def test_flags_win() -> None:
    flags = ["--comment-key", "h100", "--pull-request", "9", "--artifact", "other", "--base-branch", "stable"]
    settings = made(*flags)
    assert (settings.comment_key, settings.pull_request, settings.artifact) == ("h100", 9, "other")
    assert settings.base_branch == "stable"


def test_outside_enterprise_it_is_github() -> None:
    settings = made(GITHUB_API_URL=None, GITHUB_SERVER_URL=None)
    assert (settings.api_url, settings.server_url) == ("https://api.github.com", "https://github.com")


def test_a_workflow_of_another_repository_is_not_taken_for_this_ones() -> None:
    assert made(GITHUB_WORKFLOW_REF="octo/other/.github/workflows/gate.yml@refs/heads/main").workflow is None


def test_a_tag_is_no_branch() -> None:
    assert made(GITHUB_REF_TYPE="tag", GITHUB_REF_NAME="v1").branch is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"GITHUB_REPOSITORY": None}, "GITHUB_REPOSITORY"),
        ({"GITHUB_REPOSITORY": "octo/train/../../user"}, "GITHUB_REPOSITORY"),
        ({"GITHUB_TOKEN": None}, "set GITHUB_TOKEN"),
        ({"GITHUB_TOKEN": "  "}, "set GITHUB_TOKEN"),
        ({"GITHUB_API_URL": "file:///etc"}, "GITHUB_API_URL"),
        ({"GITHUB_API_URL": "https://user:word@ghe.example"}, "GITHUB_API_URL"),
        ({"GITHUB_RUN_NUMBER": "1; rm"}, "GITHUB_RUN_NUMBER"),
        ({"GITHUB_EVENT_PATH": "/nowhere/event.json"}, "GITHUB_EVENT_PATH"),
    ],
)
def test_what_is_missing_or_malformed_is_one_clear_error(change: dict[str, str | None], told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        made(**change)
    assert "\n" not in str(caught.value) and "word@" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "a b", "-->", "a" * 65, "é", "-x"])
def test_a_key_can_not_end_the_marker(key: str) -> None:
    with pytest.raises(argparse.ArgumentError):
        made(f"--comment-key={key}")


@pytest.mark.parametrize("number", ["0", "-1", "x", "1e3", "9" * 30])
def test_a_pull_requests_number(number: str) -> None:
    with pytest.raises(argparse.ArgumentError):
        made(f"--pull-request={number}")


@pytest.mark.parametrize("name", sorted(path.stem for path in EVENTS.glob("*.json")))
def test_real_events_are_read(name: str) -> None:
    payload = read_payload(EVENTS / f"{name}.json")
    assert payload.repository is not None and payload.repository.full_name == event(name)["repository"]["full_name"]
    assert [payload.pull_request, payload.workflow_run, payload.merge_group].count(None) == (3 if name == "push" else 2)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"pull_request": {"number": "x"}}', "[" * 10_000])
def test_a_file_that_is_no_event_is_one_clear_error(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "event.json"
    path.write_text(content)
    with pytest.raises(UserError, match="not an event's payload"):
        read_payload(path)


def test_unknown_fields_of_an_event_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "event.json"
    path.write_text(json.dumps({"new": {"field": [1]}, "pull_request": None}))
    assert read_payload(path).pull_request is None


def test_the_words_are_explained_by_the_actions_readme() -> None:
    known = {"GITHUB_ACTION_REPOSITORY": "org/symmem-check", "GITHUB_ACTION_REF": "v1"}
    assert glossary_url(known) == "https://github.com/org/symmem-check/blob/v1/README.md#the-words"
    assert glossary_url({}) is None
    assert glossary_url(known | {"GITHUB_ACTION_REF": "v1) [x](y"}) is None
