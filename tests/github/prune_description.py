"""Make tests/data/github/api.json: GitHub's own OpenAPI description, cut down to the calls that runner/github makes.

usage: npm install @octokit/openapi && python prune_description.py \
       node_modules/@octokit/openapi/generated/api.github.com.json ../data/github/api.json
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

KEEP = {
    "/repos/{owner}/{repo}/actions/artifacts": ["get"],
    "/repos/{owner}/{repo}/actions/artifacts/{artifact_id}/{archive_format}": ["get"],
    "/repos/{owner}/{repo}": ["get"],
    "/repos/{owner}/{repo}/actions/runners": ["get"],
    "/repos/{owner}/{repo}/actions/runners/generate-jitconfig": ["post"],
    "/repos/{owner}/{repo}/actions/runners/{runner_id}": ["delete"],
    "/orgs/{org}/actions/runners": ["get"],
    "/orgs/{org}/actions/runners/generate-jitconfig": ["post"],
    "/orgs/{org}/actions/runners/{runner_id}": ["delete"],
    "/repos/{owner}/{repo}/actions/runs/{run_id}": ["get"],
    "/repos/{owner}/{repo}/actions/runs/{run_id}/artifacts": ["get"],
    "/repos/{owner}/{repo}/commits/{commit_sha}/pulls": ["get"],
    "/repos/{owner}/{repo}/issues": ["get", "post"],
    "/repos/{owner}/{repo}/issues/comments/{comment_id}": ["patch", "delete"],
    "/repos/{owner}/{repo}/issues/{issue_number}": ["get", "patch"],
    "/repos/{owner}/{repo}/issues/{issue_number}/comments": ["get", "post"],
    "/repos/{owner}/{repo}/labels": ["post"],
    "/repos/{owner}/{repo}/labels/{name}": ["get"],
    "/repos/{owner}/{repo}/pulls": ["get"],
    "/repos/{owner}/{repo}/pulls/{pull_number}": ["get"],
    "/user": ["get"],
}
PROSE = {"description", "examples", "example", "externalDocs", "summary", "tags", "x-github"}
REFERENCE = re.compile(r'"\$ref": "#/components/([^"]+)"')


def without_prose(node: Any, inside_properties: bool = False) -> Any:
    """The description without what only a person reads; a property that is called `description` stays."""
    if isinstance(node, list):
        return [without_prose(one) for one in node]
    if not isinstance(node, dict):
        return node
    return {
        name: without_prose(value, name == "properties" and not inside_properties)
        for name, value in node.items()
        if inside_properties or name not in PROSE
    }


def prune(whole: dict[str, Any]) -> dict[str, Any]:
    """The calls in KEEP, and the components that they refer to, over any number of steps."""
    paths = {path: {method: whole["paths"][path][method] for method in methods} for path, methods in KEEP.items()}
    paths = without_prose(paths)
    for operations in paths.values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if "$ref" not in response:
                    response["description"] = status
    components: dict[str, dict[str, Any]] = {}
    wanted = set(REFERENCE.findall(json.dumps(paths)))
    while wanted:
        kind, name = (reference := wanted.pop()).split("/", 1)
        if name in components.get(kind, {}):
            continue
        found = whole["components"][kind][name]
        if kind != "examples":
            found = without_prose(found) | ({"description": name} if kind == "responses" else {})
        components.setdefault(kind, {})[name] = found
        wanted |= set(REFERENCE.findall(json.dumps(found))) - {reference}
    info = {key: whole["info"][key] for key in ("title", "version", "license")}
    return {
        "openapi": whole["openapi"], "info": info, "servers": whole["servers"], "paths": paths,
        "components": components,
    }  # fmt: skip


if __name__ == "__main__":
    description = prune(json.loads(Path(sys.argv[1]).read_bytes()))
    Path(sys.argv[2]).write_text(json.dumps(description, indent=1, sort_keys=True) + "\n", encoding="utf-8")
