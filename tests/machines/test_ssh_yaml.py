"""The YAML of the provider `ssh`: every mistake is told with its line and key."""

from __future__ import annotations

import pytest

from runner.errors import UserError
from runner.machines.spec import read_spec


@pytest.mark.parametrize(
    ("yaml", "told"),
    [
        ("provider: ssh\nlimits: {max-hours: 1}", 'line 1: provider: ssh needs the key "hosts"'),
        ("provider: ssh\nlimits: {max-hours: 1}\nhosts: []", "line 3: hosts: is empty"),
        ("provider: ssh\nlimits: {max-hours: 1}\nhosts:\n- {host: h, user: u}", '"known-hosts" is missing'),
        ("provider: ssh\nlimits: {max-hours: 1}\nhosts:\n- {host: h, user: u, known-hosts: k}\n"
         "- {host: h, user: u, known-hosts: k}", "line 5: hosts[1]: u@h:22 stands twice"),
        ("provider: ssh\nlimits: {max-hours: 1}\npublic-repository: yes please\n"
         "hosts:\n- {host: h, user: u, known-hosts: k}", "line 3: public-repository: unknown value"),
        ("provider: ssh\nlimits: {max-hours: 1}\nhosts:\n- {host: h, user: u, known-hosts: k, helper: x;y}",
         "line 4: hosts[0].helper: must be the path of the helper"),
    ],
)  # fmt: skip
def test_yaml_that_can_not_be_is_told_with_line_and_key(yaml: str, told: str) -> None:
    with pytest.raises(UserError) as raised:
        read_spec(yaml)
    assert told in str(raised.value)
