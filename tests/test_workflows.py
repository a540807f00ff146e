"""Workflows and forms of the repository: they parse, are pinned, and call targets that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}")
OF_WORKFLOW = {"name", "on", "permissions", "concurrency", "defaults", "env", "jobs"}
OF_JOB = {"strategy", "runs-on", "timeout-minutes", "steps"}
OF_STEP = {"uses", "with", "run", "if"}


def parsed(file: Path) -> Any:
    # YAML takes a bare `on` for true.
    text = re.sub(r"^on:", '"on":', file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return yaml.safe_load(text)


def faults(workflow: dict[str, Any], targets: set[str]) -> list[str]:
    """Return what is wrong with a workflow."""
    found = [f"unknown key {key}" for key in set(workflow) - OF_WORKFLOW]
    found += [f"no {key}" for key in ("name", "on", "jobs") if not workflow.get(key)]
    if workflow.get("permissions") != {"contents": "read"}:
        found.append("may do more than read")
    for name, job in workflow.get("jobs", {}).items():
        found += [f"{name}: unknown key {key}" for key in set(job) - OF_JOB]
        if not 0 < job.get("timeout-minutes", 0) <= 90:
            found.append(f"{name}: no timeout")
        for step in job["steps"]:
            found += [f"{name}: {fault}" for fault in _faults_of_step(step, targets)]
    return found


def _faults_of_step(step: dict[str, Any], targets: set[str]) -> list[str]:
    found = [f"unknown key {key}" for key in set(step) - OF_STEP]
    if ("uses" in step) == ("run" in step):
        found.append("a step uses or runs, one of both")
    if not PINNED.fullmatch(step.get("uses", "a/b@" + "0" * 40)):
        found.append(f"{step['uses']} isn't pinned by a full hash")
    checkout = step.get("uses", "").startswith("actions/checkout@")
    if checkout and step.get("with", {}).get("persist-credentials") is not False:
        found.append("the checkout keeps its credentials")
    if "run" in step:
        program, *words = step["run"].split()
        called = {word for word in words if "=" not in word}
        if program != "make" or not called or called - targets:
            found.append(f"'{step['run']}' calls no target of the Makefile")
    return found


@pytest.fixture(scope="module")
def targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = re.search(r"^\.PHONY: (.+)$", text, re.MULTILINE)
    assert named is not None
    found = set(named[1].split())
    assert found == set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    return found


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_is_pinned_may_only_read_and_calls_targets_of_the_makefile(file, targets):
    assert faults(parsed(file), targets) == []


def test_every_pin_says_which_version_it_is():
    for file in WORKFLOWS:
        for line in file.read_text(encoding="utf-8").splitlines():
            assert "uses:" not in line or re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line


def test_what_is_wrong_with_a_workflow_is_found(targets):
    loose = {
        "name": "loose",
        "on": {"push": None},
        "permissions": {"contents": "write"},
        "jobs": {
            "one": {
                "runs-on": "ubuntu-24.04",
                "steps": [{"uses": "actions/checkout@v4"}, {"run": "curl x | sh"}],
            }
        },
    }
    found = faults(loose, targets)
    assert len(found) == 5
    assert sum("pinned" in fault for fault in found) == 1


def test_the_tests_run_on_every_python_that_the_classifiers_name_and_on_three_systems():
    matrix = parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert {system.split("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    for package in (".", "packages/calibrant-studies"):
        project = tomllib.loads((ROOT / package / "pyproject.toml").read_text("utf-8"))["project"]
        named = re.findall(r":: (3\.\d+)", " ".join(project["classifiers"]))
        assert named == matrix["python"]
        assert project["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.name)
def test_a_form_asks_for_what_is_needed(file):
    form = parsed(file)
    if file.stem == "config":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert set(form) == {"name", "description", "labels", "body"}
    assert len({field["id"] for field in form["body"]}) == len(form["body"])
    kinds = {"input", "textarea", "checkboxes"}
    assert all(field["type"] in kinds and field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])
