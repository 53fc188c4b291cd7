"""The keys of the provider ec2: every mistake is told with its line and key, before AWS is asked anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from runner.errors import UserError
from runner.machines.ec2_candidates import Candidate, Image, read_candidates
from runner.machines.spec import read_spec
from runner.yaml_file import parse_yaml

from .aws import ec2

AMI = "ami-0123456789abcdef0"
P5 = "type: p5.48xlarge, region: us-east-2"


def candidates(text: str) -> list[Candidate]:
    return read_candidates(parse_yaml(text, Path("machine")).mapping())


def test_a_candidate_is_as_it_was_written() -> None:
    found = candidates(f"""
image: {{ssm: /gpu/image}}
candidates:
  - {{type: p5.48xlarge, region: us-east-2, zone: us-east-2b, market: spot}}
  - {{type: p4d.24xlarge, region: us-west-2, subnet: subnet-0a1b2c3d, security-groups: [sg-0a1b2c3d], price: 32.77}}
  - {{type: p5.48xlarge, region: us-gov-west-1, market: block, reservation: cr-0123456789abcdef0, image: {AMI}}}
""")
    assert found == [
        Candidate(
            type="p5.48xlarge", region="us-east-2", zone="us-east-2b", market="spot",
            image=Image(parameter="/gpu/image"),
        ),
        Candidate(
            type="p4d.24xlarge", region="us-west-2", subnet="subnet-0a1b2c3d", market="on-demand", price=32.77,
            security_groups=("sg-0a1b2c3d",), image=Image(parameter="/gpu/image"),
        ),
        Candidate(
            type="p5.48xlarge", region="us-gov-west-1", market="block", reservation="cr-0123456789abcdef0",
            image=Image(ami=AMI),
        ),
    ]  # fmt: skip
    assert [str(one) for one in found] == [
        "p5.48xlarge spot in us-east-2b",
        "p4d.24xlarge on-demand in us-west-2 subnet-0a1b2c3d",
        "p5.48xlarge block in us-gov-west-1",
    ]


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ("region: us-east-2", 'the key "type" is missing'),
        ("type: p5, region: us-east-2", "must be an instance type"),
        ("type: p5.48xlarge, region: useast", "must be a region"),
        (f"{P5}, zone: us-west-2a", "must be the name of a zone of us-east-2"),
        (f"{P5}, zone: us-east-2", "must be the name of a zone of us-east-2"),
        (f"{P5}, zone: us-east-2a, subnet: subnet-0a1b2c3d", "can't stand beside a subnet"),
        (f"{P5}, market: spott", 'did you mean "spot"'),
        (f"{P5}, market: block", 'the key "reservation" is missing'),
        (f"{P5}, market: reservation, reservation: p5", "must be the id of a capacity reservation"),
        (f"{P5}, market: spot, reservation: cr-0a1b2c3d", "is for the markets reservation and block"),
        (f"{P5}, price: 0", "US dollars an hour above 0"),
        (f"{P5}, security-groups: sg-0a1b2c3d", "must be a list"),
        (f"{P5}, security-groups: [default]", "must be a security group's id"),
        (f"{P5}, image: ubuntu", "must be an image's id"),
        (f"{P5}, image: {{ssm: gpu}}", "must be the whole name of an SSM parameter"),
        (f"{P5}, key-name: mine", "unknown key"),
    ],
)
def test_a_mistake_is_told_with_its_line(candidate: str, said: str) -> None:
    with pytest.raises(UserError, match=r"machine, line 5: candidates\[0\]") as caught:
        ec2(candidate)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("candidates: []", "must be between 1 and 50, and are 0"),
        (f"candidates: [{{{P5}}}]", "candidates[0]: has no image"),
        (f"image: {AMI}\ncandidates: [{{{P5}}}, {{{P5}}}]", "candidates[1]: stands there twice"),
        (
            f"image: {AMI}\ncandidates: [{{{P5}}}, {{type: p5.48xlarge, region: us-west-2}}]",
            f"{AMI} is of one region, and these candidates are in us-east-2, us-west-2",
        ),
    ],
)
def test_a_list_that_can_not_be_is_refused(lines: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        candidates(lines)
    assert said in str(caught.value)


def test_an_image_of_its_own_lets_a_candidate_be_in_another_region() -> None:
    west = "type: p5.48xlarge, region: us-west-2, image: ami-0a1b2c3d"
    assert [one.image.ami for one in candidates(f"image: {AMI}\ncandidates: [{{{P5}}}, {{{west}}}]")] == [
        AMI, "ami-0a1b2c3d",
    ]  # fmt: skip


def test_a_candidate_list_is_needed() -> None:
    with pytest.raises(UserError, match='machine, line 1: provider: ec2 needs the key "candidates"'):
        read_spec("provider: ec2\nlimits: {max-hours: 1}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("disk-gb: 2", "must be at least 8"),
        ("user: root", "must not be root"),
        ("user: Runner", "must be a user's name"),
    ],
)
def test_what_all_candidates_share_is_checked(line: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        ec2(P5, more=f"image: {AMI}\n{line}")


def test_the_example_of_the_page_is_right(project: Path) -> None:
    page = (project / "docs" / "machines" / "ec2.md").read_text(encoding="utf-8")
    example = re.search(r"```yaml\n(machine:.*?)```", page, re.DOTALL)
    assert example is not None
    spec, _ = read_spec(yaml.safe_load(example[1])["machine"])
    assert (spec.provider, spec.limits.max_price) == ("ec2", 40)
