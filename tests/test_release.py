"""What a release is made of: one version everywhere, metadata, a long description that renders."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tomllib
from email.message import Message
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import yaml
from scripts.release import check, oldest, prepare

import calibrant as cb

ROOT = Path(__file__).parents[1]
STUDIES = ROOT / prepare.STUDIES / "pyproject.toml"


@pytest.fixture(scope="module")
def hatch_build() -> ModuleType:
    """The hook that makes the long description; what it takes of hatchling is a base class."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    stand_in = SimpleNamespace(MetadataHookInterface=object)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "hatchling.metadata.plugin.interface", stand_in)
        spec.loader.exec_module(module)
    return module


def test_links_of_the_long_description_are_absolute_or_left_out(hatch_build):
    readme = "![A](docs/a.png)\n\n[one](docs/a.md), [two](https://b.org), [three](#here)\n"
    full = hatch_build.for_an_index(readme, "https://host.org/us/it/", "0.2.0")
    assert full == (
        "![A](https://host.org/us/it/raw/v0.2.0/docs/a.png)\n\n"
        "[one](https://host.org/us/it/blob/v0.2.0/docs/a.md), [two](https://b.org), "
        "[three](#here)\n"
    )
    assert hatch_build.for_an_index(readme, None, "0.2.0") == (
        "\n\none, [two](https://b.org), [three](#here)\n"
    )


@pytest.mark.parametrize("address", [None, "https://host.org/us/it"])
def test_no_link_of_the_readme_leads_nowhere_on_an_index(hatch_build, address):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    text = hatch_build.for_an_index(readme, address, "0.2.0")
    assert check.RELATIVE.search(readme)
    assert check.RELATIVE.search(text) is None
    assert check.RELATIVE.search((STUDIES.parent / "README.md").read_text("utf-8")) is None


def test_both_packages_and_the_citation_are_of_one_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert check.version_of(ROOT) == cb.__version__ == citation["version"]
    project = tomllib.loads(STUDIES.read_text(encoding="utf-8"))["project"]
    minor = cb.__version__.rpartition(".")[0]
    assert f"calibrant>={minor}" in project["dependencies"]
    assert project.get("urls", {}).get("Repository") == prepare.repository(ROOT)
    assert citation.get("repository-code") == prepare.repository(ROOT)


@pytest.fixture
def copy(tmp_path) -> Path:
    """The files of this checkout that hold its version."""
    for file in (
        *(*prepare.VERSIONS, prepare.CITATION, prepare.CHANGELOG),
        *(Path("pyproject.toml"), prepare.STUDIES / "pyproject.toml"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / prepare.CHANGELOG).write_text("# Changes\n\n## Unreleased\n\n- One.\n")
    return tmp_path


def test_a_version_is_put_everywhere(copy):
    with (copy / "pyproject.toml").open("a") as stream:
        stream.write('\n[project.urls]\nRepository = "https://host.org/us/it"\n')
    prepare.prepare(copy, "7.8.9", "2030-01-02")
    assert check.version_of(copy) == "7.8.9"
    citation = yaml.safe_load((copy / prepare.CITATION).read_text(encoding="utf-8"))
    assert citation["version"] == "7.8.9"
    assert str(citation["date-released"]) == "2030-01-02"
    assert citation["repository-code"] == "https://host.org/us/it"
    studies = tomllib.loads((copy / prepare.STUDIES / "pyproject.toml").read_text())["project"]
    assert "calibrant>=7.8" in studies["dependencies"]
    assert studies["urls"] == {"Repository": "https://host.org/us/it"}
    changes = (copy / prepare.CHANGELOG).read_text()
    assert changes == "# Changes\n\n## Unreleased\n\n## 7.8.9 - 2030-01-02\n\n- One.\n"


@pytest.mark.parametrize("version", ["0.2", "v0.2.0", "1.2.3rc1"])
def test_what_is_no_version_is_refused(copy, version):
    with pytest.raises(ValueError, match="is no version such as"):
        prepare.prepare(copy, version, "2030-01-02")


def test_a_version_is_released_once_and_never_without_changes(copy):
    prepare.prepare(copy, "7.8.9", "2030-01-02")
    before = (copy / prepare.CHANGELOG).read_text()
    with pytest.raises(ValueError, match=r"has a part of 7\.8\.9 already"):
        prepare.prepare(copy, "7.8.9", "2030-01-02")
    with pytest.raises(ValueError, match="has nothing under"):
        prepare.prepare(copy, "7.9.0", "2030-01-02")
    assert (copy / prepare.CHANGELOG).read_text() == before


def good(tmp_path: Path) -> check.Built:
    metadata = Message()
    for name, value in {
        "Version": "0.2.0",
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Description-Content-Type": "text/markdown",
        "Requires-Python": ">=3.11",
        "Classifier": "Programming Language :: Python :: 3.11",
    }.items():
        metadata[name] = value
    metadata.set_payload("Words. " * 40)
    names = ["calibrant/py.typed", "calibrant-0.2.0.dist-info/licenses/LICENSE"]
    return check.Built(tmp_path / "calibrant-0.2.0-py3-none-any.whl", metadata, names)


def test_a_good_distribution_has_no_faults(tmp_path):
    assert check.faults(good(tmp_path), "0.2.0") == []


def test_what_a_distribution_lacks_is_found(tmp_path):
    built = good(tmp_path)
    built.names[:] = ["tests/test_it.py"]
    built.metadata.set_payload("See [there](docs/there.md).")
    del built.metadata["License-Expression"]
    found = " ".join(check.faults(built, "0.3.0"))
    for fault in ("of version 0.2.0", "no licence", "no LICENSE", "no py.typed", "installs tests"):
        assert fault in found
    assert "no long description" in found
    assert "a relative link, ](docs/there.md)" in found


def test_the_oldest_versions_are_those_of_the_lower_bounds():
    project = {
        "dependencies": ["numpy>=1.26", "scipy>=1.12"],
        "optional-dependencies": {"frames": ["pandas>=2", "numpy>=2"]},
    }
    assert oldest.oldest(project, []) == ["numpy==1.26", "scipy==1.12"]
    assert oldest.oldest(project, ["frames"]) == ["numpy==2", "scipy==1.12", "pandas==2"]
    with pytest.raises(ValueError, match="no lower bound"):
        oldest.oldest({"dependencies": ["numpy"]}, [])


def test_every_dependency_has_a_lower_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    of_users = set(project["optional-dependencies"]) - {"dev", "peers", "docs"}
    assert len(oldest.oldest(project, sorted(of_users))) > 12
