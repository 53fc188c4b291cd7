"""The calls about runners, against GitHub's own description."""

from __future__ import annotations

import pytest

from runner.github.client import ApiError, Client
from runner.github.runners import Runners
from runner.github.settings import Token

from ..github.conftest import QuickClock
from ..github.fake import REPOSITORY, Fault
from .fake import ADMIN, ORGANIZATION, FakeWithRunners

NAME = "symmem-0123abcd-4711-1-gpu"
LABEL = f"{NAME}-0f1e"


@pytest.fixture(params=[None, ORGANIZATION], ids=["repository", "organization"])
def runners(request: pytest.FixtureRequest, github: FakeWithRunners) -> Runners:
    return Runners(Client(github.url, Token(ADMIN), clock=QuickClock()), REPOSITORY, request.param)


def test_a_runner_is_known_by_its_name_with_one_label_and_gone_when_forgotten(
    runners: Runners, github: FakeWithRunners
) -> None:
    token = runners.register(NAME, LABEL)
    assert token.value == github.configuration(NAME) and token.value not in repr(token)
    (runner,) = github.runners
    assert [label["name"] for label in runner["labels"]] == [LABEL]
    found = runners.find(NAME)
    assert found is not None and (found.name, found.status) == (NAME, "offline")
    runners.forget(NAME)
    assert runners.find(NAME) is None and github.runners == []
    runners.forget(NAME)


def test_a_name_that_is_taken_is_given_to_the_new_runner(runners: Runners, github: FakeWithRunners) -> None:
    runners.register(NAME, LABEL)
    before = github.runners[0]["id"]
    runners.register(NAME, LABEL)
    assert [one["name"] for one in github.runners] == [NAME] and github.runners[0]["id"] != before


@pytest.mark.parametrize("drop", ["after", "body"])
def test_a_registration_whose_answer_was_lost_leaves_one_runner(
    drop: str, runners: Runners, github: FakeWithRunners
) -> None:
    github.faults.append(Fault("POST", "generate-jitconfig", drop=drop))
    runners.register(NAME, LABEL)
    assert github.names() == [NAME]


def test_runners_are_found_on_any_page_and_by_the_beginning_of_their_names(
    runners: Runners, github: FakeWithRunners
) -> None:
    for number in range(130):
        runners_of_others = f"other-{number}"
        github.runners.append({**github.runners[0], "id": 5000 + number, "name": runners_of_others} if github.runners
                              else _register(runners, github))  # fmt: skip
    assert [one.name for one in runners.beginning_with("symmem-0123abcd-")] == [NAME]
    assert len(runners.beginning_with("other-")) == 129


def _register(runners: Runners, github: FakeWithRunners) -> dict[str, object]:
    runners.register(NAME, LABEL)
    return github.runners.pop()


def test_a_token_that_may_not_is_told(github: FakeWithRunners) -> None:
    other = Runners(Client(github.url, Token("ghs_x"), clock=QuickClock()), REPOSITORY)
    with pytest.raises(ApiError, match="403: Resource not accessible"):
        other.register(NAME, LABEL)


def test_an_attempt_is_over_when_it_ended_or_a_later_one_began(runners: Runners, github: FakeWithRunners) -> None:
    assert not runners.is_over(4711, 1)
    github.over.add((4711, 2))
    assert runners.is_over(4711, 1) and runners.is_over(4711, 2)


def test_a_run_that_is_not_found_is_over_only_where_the_repository_is(
    runners: Runners, github: FakeWithRunners
) -> None:
    """GitHub answers 404 to a token that may not see a private repository too."""
    github.faults.append(Fault("GET", "/actions/runs/1", status=404, times=2))
    assert runners.is_over(1, 1)
    github.faults.append(Fault("GET", f"/repos/{REPOSITORY}$", status=404))
    with pytest.raises(ApiError, match="404"):
        runners.is_over(1, 1)
