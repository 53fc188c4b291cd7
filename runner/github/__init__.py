"""The GitHub side: one comment on a pull request, the baseline from an artifact, and the client for both.

Nothing here is needed to run or judge; what can't be posted becomes a notice, and never the gate's failure.
"""

from __future__ import annotations

from .artifacts import fetch_result, find_baseline
from .comment import CommentOutcome, post_comment
from .settings import GithubSettings, add_github_arguments, github_settings

__all__ = [
    "CommentOutcome", "GithubSettings", "add_github_arguments", "fetch_result", "find_baseline", "github_settings",
    "post_comment",
]  # fmt: skip
