"""Methods of other packages: taken in from their metadata, and left out with a word if broken."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from calibrant.cli import main
from calibrant.core.errors import CalibratorFileError, PlugInWarning, UnknownMethodError
from calibrant.core.plug_ins import forget_plug_ins
from calibrant.files import write_predictions
from calibrant.posthoc.loading import load
from calibrant.posthoc.registry import BUILT_IN, GROUP, METHODS, make_calibrator, parse_arguments
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.rows import softmax
from calibrant.sample import load_sample

EXAMPLE = Path(__file__).parent / "plug_in_example"
Install = Callable[..., None]


@pytest.fixture
def install(install_plug_ins) -> Install:
    """Return a function that installs the example under entry points of one's choice."""
    return partial(install_plug_ins, EXAMPLE, GROUP)


GOOD = "shrink_towards_uniform:ShrinkTowardsUniform"


def test_the_example_fits_saves_and_loads(install, tmp_path, overconfident):
    install(shrink_uniform=GOOD)
    assert list(METHODS) == [*BUILT_IN, "shrink-uniform"]
    assert len(METHODS) == len(BUILT_IN) + 1
    logits, labels = overconfident
    calibrator = make_calibrator("shrink-uniform", **parse_arguments("shrink-uniform", []))
    probs = calibrator.fit(logits, labels).predict_proba(logits)
    # The law of its docstring: the weight makes the mean confidence the accuracy.
    accuracy = (logits.argmax(axis=1) == labels).mean()
    np.testing.assert_allclose(probs.max(axis=1).mean(), accuracy)
    weight = calibrator.state()["weight_"]
    np.testing.assert_allclose(probs, (1 - weight) * softmax(logits) + weight / 5)
    calibrator.save(tmp_path / "a.safetensors")
    back = load(tmp_path / "a.safetensors")
    np.testing.assert_array_equal(back.predict_proba(logits), probs)


def test_on_the_command_line_and_as_a_candidate(install, tmp_path, overconfident, monkeypatch):
    install(shrink_uniform=GOOD)
    write_predictions(Predictions.from_logits(*overconfident), tmp_path / "val.npz")
    for arguments in (
        ["--method", "shrink-uniform"],
        ["--set", "candidates=shrink-uniform", "--set", "folds=2"],
    ):
        command = ["calibrant", "fit", tmp_path / "val.npz", "--out", tmp_path / "a.safetensors"]
        monkeypatch.setattr(sys, "argv", [str(word) for word in [*command, *arguments]])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
    assert "shrink-uniform" in " ".join(load(tmp_path / "a.safetensors").fit_report_.notes)


def test_without_the_package_its_file_is_refused(install, tmp_path, overconfident, monkeypatch):
    install(shrink_uniform=GOOD)
    make_calibrator("shrink-uniform").fit(*overconfident).save(tmp_path / "a.safetensors")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not p.startswith(str(tmp_path))])
    forget_plug_ins()
    with pytest.raises(CalibratorFileError, match="unknown method 'shrink-uniform'"):
        load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("temperature", GOOD, "there is already a method called 'temperature'"),
        ("other-name", GOOD, "calls itself 'shrink-uniform'; the two names must be the same"),
        ("gone", "shrink_no_such_module:X", "No module named 'shrink_no_such_module'"),
        ("gone", "shrink_towards_uniform:Missing", "Missing"),
        ("function", "shrink_towards_uniform:dataclass", "not a class derived from"),
        ("a-class", "pathlib:Path", "it is not a class derived from calibrant.Calibrator"),
        (
            "abstract",
            "calibrant.posthoc.base:Calibrator",
            "Calibrator lacks _fit, n_parameters, transform",
        ),
        ("crash", "shrink_crash:X", "no such luck"),
        ("greedy", "shrink_greedy:Greedy", "required"),
        ("nameless", "shrink_greedy:Nameless", "no class attribute 'method'"),
    ],
)
def test_what_does_not_work_is_left_out_with_a_word(install, tmp_path, name, value, reason):
    install(**{name: value, "shrink-uniform": GOOD})
    (tmp_path / "site/shrink_crash.py").write_text("raise OSError('no such luck')\n")
    (tmp_path / "site/shrink_greedy.py").write_text(
        "from dataclasses import dataclass\n"
        "from calibrant.posthoc.base import Calibrator\n"
        "from calibrant.posthoc.temperature.scaling import Uncalibrated\n"
        "@dataclass(eq=False)\n"
        "class Greedy(Uncalibrated):\n"
        "    method = 'greedy'\n"
        "    def __init__(self, required): ...\n"
        "class Nameless(Calibrator):\n"
        "    keeps_prediction = True\n"
        "    n_parameters = 0\n"
        "    def _fit(self, predictions): ...\n"
        "    def transform(self, xp, logits, features, learnt, *, masks=True): ...\n"
    )
    with pytest.warns(PlugInWarning) as caught:
        names = list(METHODS)
    assert names == [*BUILT_IN, "shrink-uniform"]
    (warning,) = [w for w in caught if issubclass(w.category, PlugInWarning)]
    text = str(warning.message)
    assert text.startswith(f"left out plug-in '{name}' of package 'plug_in_example' ({value}): ")
    assert reason in text
    # Said once, not at every look.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert METHODS["shrink-uniform"].method == "shrink-uniform"
        assert METHODS["temperature"].method == "temperature"


def test_on_the_command_line_it_is_said_in_one_line(install, monkeypatch, capsys):
    install(gone="shrink_no_such_module:X")
    command = ["calibrant", "fit", "val.npz", "--method", "magic", "--out", "a.safetensors"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit):
        main()
    first, second = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("warning: left out plug-in 'gone' of package 'plug_in_example'")
    assert second.startswith("error: no method is called 'magic'")


def test_built_in_methods_load_no_plug_in(install):
    install(crash="shrink_no_such_module:X")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_calibrator("smart")
    with pytest.warns(PlugInWarning), pytest.raises(UnknownMethodError, match="'no-such'"):
        make_calibrator("no-such")


def test_the_documentation_shows_the_example():
    source = (EXAMPLE / "shrink_towards_uniform.py").read_text()
    assert len(source.splitlines()) <= 30
    page = (Path(__file__).parents[1] / "docs/guides/plug-ins.md").read_text()
    assert source in page


@pytest.fixture
def run(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; gives code, output and errors."""

    def called(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["calibrant", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return called


COMMANDS = """
import typer

app = typer.Typer(help="Say things.")


@app.command()
def hello(name: str) -> None:
    print(f"hello {name}")


@app.command()
def bye() -> None:
    print("bye")


def count(upto: int = 2) -> None:
    \"\"\"Count up.\"\"\"
    print(list(range(upto)))
"""


def test_commands_of_other_packages_are_called_and_listed(install_plug_ins, tmp_path, run):
    folder = tmp_path / "talking"
    folder.mkdir()
    (folder / "talking.py").write_text(COMMANDS)
    points = {"talk": "talking:app", "count": "talking:count", "measure": "talking:app"}
    install_plug_ins(folder, "calibrant.commands", **points)
    code, out, err = run("count", "--upto", "3")
    assert (code, out) == (0, "[0, 1, 2]\n")
    assert "there is already a command called 'measure'" in err
    code, out, _ = run()
    assert code == 0
    assert "Say things." in out
    assert "Count up." in out
    assert run("talk", "hello", "you")[:2] == (0, "hello you\n")


def test_what_is_no_command_is_left_out(install_plug_ins, run):
    install_plug_ins(EXAMPLE, "calibrant.commands", odd="shrink_towards_uniform:__name__")
    code, _, err = run("odd")
    assert code == 2
    assert "'odd'" in err
    assert "neither a function nor a typer.Typer" in err
    assert "no command is called 'odd'" in err


def test_studies_say_in_which_package_they_are(monkeypatch, run):
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [])
    forget_plug_ins()
    code, out, err = run("study", "list")
    forget_plug_ins()
    assert (code, out) == (2, "")
    assert err == (
        "error: 'study' is a command of the package calibrant-studies: "
        "pip install calibrant-studies\n"
    )


@pytest.mark.parametrize("words", [["--version"], ["measure", "sample.npz"]])
def test_built_in_commands_look_for_no_plug_in(words, tmp_path):
    write_predictions(load_sample("test").take(np.arange(300)), tmp_path / "sample.npz")
    program = (
        f"import sys; sys.argv = {['calibrant', *words]}\n"
        "from importlib import metadata\n"
        "def fail(group): raise AssertionError(group)\n"
        "metadata.entry_points = fail\n"
        "from calibrant.cli import main\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
