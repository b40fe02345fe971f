"""What a release is made of: pyproject.toml, the Makefile's dist, .github/workflows/release.yml."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from streamer.version import __version__

REPOSITORY = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
WORKFLOW = (REPOSITORY / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW)["jobs"]
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]


def artifacts(action: str) -> list[str]:
    """Return the names of the artifacts that steps with an action name."""
    return [step["with"]["name"] for step in STEPS if action in step.get("uses", "") and "name" in step["with"]]


def test_the_command_is_also_called_as_the_distribution() -> None:
    assert PROJECT["scripts"][PROJECT["name"]] == PROJECT["scripts"]["streamer"]
    assert PROJECT["version"] == __version__


def test_the_workflow_runs_what_there_is_in_an_order_that_there_is() -> None:
    for name, job in JOBS.items():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) < JOBS.keys() - {name}
    for target in re.findall(r"run: make (\w+)", WORKFLOW):
        assert re.search(rf"(?m)^{target}:", MAKEFILE)
    assert set(artifacts("download-artifact")) <= set(artifacts("upload-artifact"))
    assert f"venv/bin/{PROJECT['name']} " in WORKFLOW


def test_only_what_publishes_may_and_nothing_may_by_default() -> None:
    assert yaml.safe_load(WORKFLOW)["permissions"] == {}
    assert [name for name, job in JOBS.items() if "id-token" in job["permissions"]] == ["pypi"]
    assert "secrets." not in WORKFLOW


def test_actions_are_pinned_by_their_commits_which_tags_are_not() -> None:
    used = re.findall(r"uses: (\S+)(.*)", WORKFLOW)
    assert len(used) == sum("uses" in step for step in STEPS)
    for action, version in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action)
        assert re.fullmatch(r"  # v\d+\.\d+\.\d+", version)


def test_what_is_uploaded_is_what_make_dist_builds() -> None:
    (bill,) = re.findall(r"--output-file (dist/\S+)", MAKEFILE)
    paths = [step["with"]["path"] for step in STEPS if "upload-artifact" in step.get("uses", "")]
    assert paths == [f"dist/{PROJECT['name'].replace('-', '_')}-*", bill]


def test_images_are_built_for_each_driver() -> None:
    stages = set(re.findall(r"(?m)^FROM \S+ AS (\w+)", (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")))
    assert set(JOBS["images"]["strategy"]["matrix"]["driver"]) == stages - {"build"}
