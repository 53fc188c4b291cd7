"""Version bounds such as ">=2.8, <2.12", as a suite writes them for a known problem.

PyTorch and NCCL versions are PEP 440 versions (https://peps.python.org/pep-0440/), but two habits of nightly
builds make its own comparison useless here: 2.15.0.dev20260301 is neither ">=2.15" nor "<2.15" by it. A nightly
stands for the release it leads to, so here it counts as 2.15.0, unless the bound itself names a pre-release.
"""

from __future__ import annotations

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version


def parse_bound(bound: str) -> SpecifierSet:
    """The parts of a bound; raises ValueError in words for one that is empty or is none."""
    try:
        parts = SpecifierSet(bound)
    except InvalidSpecifier:
        raise ValueError('is no version bound; write it like ">=2.8" or ">=2.8, <2.12"') from None
    if "===" in bound or "+" in bound:
        raise ValueError('must not use "===" or a build\'s label ("+cu130"): labels are ignored')
    if not len(parts):
        raise ValueError('is empty; write it like ">=2.8", or leave the key out')
    return parts


def within(version: str | None, bound: str) -> bool:
    """Whether `version` satisfies every part of `bound`; a version that is missing or can't be read never does.

    The build's label (`+cu130`) is ignored. Raises ValueError as `parse_bound` does.
    """
    parts = parse_bound(bound)
    try:
        seen = Version(version or "")
    except InvalidVersion:
        return False
    return all(_part_holds(seen, part) for part in parts)


def _part_holds(seen: Version, part: Specifier) -> bool:
    exact = Version(part.version.removesuffix(".*")).is_prerelease
    return part.contains(seen.public if exact else seen.base_version, prereleases=True)
