"""The pages of the reference, from what classes, functions and commands say themselves.

A page each for losses, from their docstrings; for methods and metrics, from
`calibrant.posthoc.registry` and `calibrant.metrics.registry`; for commands, from their
declarations; for packages, from the stubs and docstrings of their public names.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from scripts.documentation.pictures import TEST_ROWS, cats, rows_to_draw

import calibrant as cb
from calibrant.cli.app import app
from calibrant.cli.options import OWN
from calibrant.core.docstrings import Argument, Docstring
from calibrant.core.lazy import stub_names
from calibrant.metrics import registry as metrics
from calibrant.posthoc import registry as methods
from calibrant.posthoc.registry import METHODS

FOLDERS = ("methods", "metrics", "losses", "commands", "python")
PACKAGES = (
    *("calibrant", "calibrant.metrics", "calibrant.posthoc", "calibrant.predictions"),
    "calibrant.decision",
    *("calibrant.scale", "calibrant.training", "calibrant.report", "calibrant.sklearn"),
)
# What `python -m benchmarks.losses` measured.
COSTS = Path(__file__).parents[2] / "benchmarks/results/losses.json"
LISTED = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Errors"}
# What Markdown would take for markup outside of code.
MARKUP = re.compile(r"(`[^`]*`)|([\[\]<>*_|\\])")
# A page of the site that a docstring names; it becomes a link with the page's title.
PAGE = re.compile(r"\bdocs/((?:appendix|guides|tours)/[\w-]+\.md)")


# How a long signature is broken.
BROKEN: dict[str, Any] = {"subsequent_indent": "    ", "break_on_hyphens": False}


def write_reference(folder: Path) -> list[Path]:
    """Write all pages and pictures below a folder, and return the pages."""
    pages = _method_pages() | _metric_pages() | loss_pages() | _command_pages() | _python_pages()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def prose(text: str) -> str:
    """Return a paragraph of a docstring as Markdown; what is indented stays as it is."""
    if text.startswith("- "):
        items = re.split(r"^- ", text, flags=re.MULTILINE)[1:]
        return "\n".join(f"- {prose(' '.join(item.split()))}" for item in items)
    if "\n" in text or text.startswith("    "):
        return fenced(inspect.cleandoc(text))
    text = MARKUP.sub(lambda found: found[1] or f"\\{found[2]}", text)
    return PAGE.sub(r"[](../../\1)", text)


def fenced(text: str, language: str = "text") -> str:
    """Return a block that is shown as it is."""
    return f"```{language}\n{text.strip()}\n```"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _link(name: str) -> str:
    return f"[{name}]({name}.md)"


def _page(title: str, *parts: str) -> str:
    # The bar at the side would be long with all of these pages, and take most of the build.
    return "\n\n".join(["---\norphan: true\n---", f"# {title}", *filter(None, parts)]) + "\n"


def _index(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", *parts]) + "\n"


def _arguments(arguments: Mapping[str, Argument], title: str) -> str:
    if not arguments:
        return ""
    rows = [
        (f"`{name}`", f"`{default!r}`", prose(" ".join(meaning.split())))
        for name, (default, meaning) in arguments.items()
    ]
    return f"## {title}\n\n" + table(("argument", "default", "meaning"), rows)


def _sources(sources: Sequence[str]) -> str:
    return "## Source\n\n" + "\n\n".join(map(prose, sources)) if sources else ""


def _example(thing: object) -> str:
    lines = Docstring.of(thing).sections.get("Examples", ())
    text = inspect.cleandoc("\n".join(["", *lines]))
    return "## Example\n\n" + fenced(text, "pycon") if ">>>" in text else ""


# --- methods


def _method_pages() -> dict[str, str]:
    found = methods.all_described()
    families: dict[str, list[methods.Described]] = {}
    for each in found:
        families.setdefault(each.facts.family if each.facts else "others", []).append(each)
    listing = [
        f"## {family[0].upper()}{family[1:]}\n\n"
        + table(
            ("method", "what it computes", "keeps classes"),
            [(_link(e.method), prose(e.formula), "yes" if e.keeps else "no") for e in members],
        )
        for family, members in families.items()
    ]
    intro = (
        "Each method is a small map that is fitted to held-out predictions. `calibrant fit "
        "--method NAME` fits one. Several can stand in a row: in `svs+top-rest`, `top-rest` "
        "corrects what `svs` returns. `none` is the classifier itself. `auto`, the default, "
        "averages several. A method keeps classes if no row's predicted class can change."
    )
    pages = {"methods/index.md": _index("Methods", intro, *listing)}
    for each in found:
        kind = METHODS.named(each.method)
        facts = [("predicted classes", _predicted(each))]
        if each.needs:
            facts.append(("needs, besides logits", ", ".join(each.needs)))
        if each.facts:
            facts += [
                ("family", prose(each.facts.family)),
                ("cost of a fit", prose(each.facts.cost)),
                ("when it fails", prose(each.facts.fails)),
            ]
        facts.append(("in Python", f"`{kind.__name__}`"))
        pages[f"methods/{each.method}.md"] = _page(
            f"`{each.method}`: {methods.title_of(kind)}",
            prose(each.formula),
            table(("", ""), facts),
            f"![Confidence after {each.method} over the confidence before](../../made/method-"
            f"{each.method}.png)\n\nEach point is a row of the sample data: the confidence of the "
            "predicted class before, and the probability of the same class after. On the line "
            "nothing changes.",
            *map(prose, each.text),
            "## Use\n\n"
            + fenced(
                f"calibrant fit val.npz --method {each.method} --out calibrator.safetensors", "sh"
            ),
            _arguments(each.arguments, "Arguments (`--set KEY=VALUE`)"),
            _example(kind),
            _sources(each.sources),
        )
    return pages


def _predicted(method: methods.Described) -> str:
    return "kept" if method.keeps else "may change"


# --- metrics


def _metric_pages() -> dict[str, str]:
    found = metrics.all_described()
    values = _values()
    rows = [
        (
            f"[{e.metric.name}]({e.metric.name}.md)",
            prose(e.metric.title),
            prose(e.metric.definition),
        )
        for e in found
    ]
    intro = (
        "`calibrant measure --metrics NAME,NAME` measures some, `--metrics all` every one that the "
        "file allows. Each has an interval, and each calibration error has a floor: the value that "
        "a perfectly calibrated classifier shows on as many rows. Those that end in `_positive` "
        "are about the probability of the positive class of binary predictions."
    )
    listing = table(("metric", "name", "convention"), rows)
    pages = {"metrics/index.md": _index("Metrics", intro, listing)}
    for each in found:
        metric = each.metric
        better = "lower" if metric.lower_is_better else "higher"
        facts = [
            ("convention", prose(metric.definition)),
            ("better", f"{metric.ideal:g}" if metric.ideal is not None else better),
            ("cost", prose(metric.effort or "")),
            ("when it misleads", prose(metric.fails or "")),
        ]
        function = metric.function
        if function is not None:
            facts.append(("in Python", f"`calibrant.metrics.{function.__name__}`"))
        formula = each.formula.removeprefix("Return ")
        pages[f"metrics/{metric.name}.md"] = _page(
            f"`{metric.name}`: {metric.title}",
            prose(formula[:1].upper() + formula[1:]),
            table(("", ""), facts),
            values.get(metric.name, ""),
            _picture_of_metric(metric),
            *map(prose, each.text),
            _arguments(each.arguments, "Arguments in Python"),
            _example(function) if function is not None else "",
            _sources(each.sources),
        )
    return pages


def _picture_of_metric(metric: Any) -> str:
    return (
        f"![{metric.title} over the temperature](../../made/metric-{metric.name}.png)\n\n"
        "The curve is the value on these rows, with its 95 % interval, if all logits are divided "
        "by this temperature; 1 leaves them as they are. The points, for metrics with bins of "
        "confidence, are the accuracy in each bin."
    )


def _values() -> dict[str, str]:
    """Return, for each metric, its values on the sample as it is and after one temperature."""
    val, test = rows_to_draw()
    scaled = cb.TemperatureScaling().fit_predictions(val).apply_predictions(test)
    cases = {"as they are": test, "after `temperature`": scaled}
    found: dict[str, list[tuple[str, ...]]] = {}
    for case, rows in cases.items():
        for each, positive in ((rows, False), (cats(rows), True)):
            measured = cb.evaluate(each, metrics="all", resamples=100)
            for name, result in measured.results.items():
                if result.metric.of_positive == positive:
                    floor = "" if result.floor is None else f"{result.floor:.4f}"
                    interval = f"{result.low:.4f} to {result.high:.4f}"
                    found.setdefault(name, []).append(
                        (case, f"{result.value:.4f}", interval, floor)
                    )
    head = ("predictions", "value", "95 % interval", "floor")
    known = metrics.all_metrics()
    what = f"Values on the first {TEST_ROWS} test rows of the sample data"
    return {
        name: f"{what}{', cats against the rest' * known[name].of_positive}:\n\n{table(head, rows)}"
        for name, rows in found.items()
    }


# --- losses

# Logits of three classes, of which the first is the true one, and what they are.
LOSS_ROWS = (
    ("right, confidence 0.99", (5.2933, 0.0, 0.0)),
    ("right, confidence 0.60", (1.0986, 0.0, 0.0)),
    ("wrong, confidence 0.60", (0.0, 1.0986, 0.0)),
    ("wrong, confidence 0.99", (0.0, 5.2933, 0.0)),
)
DEPENDS = "a row's loss [depends on](../../appendix/losses.md#all-of-them)"
ROOT_OF_LOSSES = "[CalibrationLoss](../python/calibrant.training.CalibrationLoss.md)"


def loss_pages() -> dict[str, str]:
    from calibrant.training.losses.registry import LOSSES, entry_of

    rows = list[tuple[str, ...]]()
    pages: dict[str, str] = {}
    for name in LOSSES:
        entry, kind = entry_of(name)
        text = Docstring.of(kind)
        rows.append((f"[{name}]({name}.md)", prose(entry.words), prose(entry.paper)))
        facts = [
            ("in words", prose(entry.words)),
            ("source", prose(entry.paper)),
            ("when it fails", prose(kind.fails)),
            (DEPENDS, prose(kind.distributed)),
            ("remembers from batch to batch", prose(kind.state or "nothing")),
            (
                "needs, besides logits and labels",
                ", ".join(sorted(_needs(name, kind))) or "nothing",
            ),
            ("cost", _cost_of_loss(name)),
            ("in Python", f"`calibrant.training.losses.{kind.__name__}`"),
        ]
        published = [
            (data, ", ".join(f"`{key}={value!r}`" for key, value in settings.items()))
            for data, settings in entry.published.items()
        ]
        settings = [
            (f"`{a}`", prose(" ".join(m.split())).replace("`CalibrationLoss`", ROOT_OF_LOSSES))
            for a, m in text.items("Args").items()
        ]
        own = ", ".join(f"{key}={value!r}" for key, value in entry.arguments.items())
        missing = [
            f", {each.name}=..."
            for each in fields(kind)
            if each.default is MISSING and each.default_factory is MISSING and each.init
        ]
        asked = "".join(each for each in missing if each != ", n_classes=...")
        pages[f"losses/{name}.md"] = _page(
            f"`{name}`",
            prose(text.summary),
            table(("", ""), facts),
            *map(prose, text.paragraphs),
            _worth_of_rows(name, kind),
            "## Use\n\n"
            + fenced(f"calibrant train --loss {name} --data DATA --out RUN", "sh")
            + "\n\n"
            + fenced(
                f"from calibrant.training import make_loss\n\n"
                f'loss = make_loss("{name}", n_classes=10{asked})'
                + (f"  # {kind.__name__}({own})" if own else ""),
                "python",
            ),
            "## Arguments\n\n" + table(("argument", "meaning"), settings) if settings else "",
            "## Published settings\n\n" + table(("data", "settings"), published)
            if published
            else "",
        )
    intro = (
        "A loss is chosen when a network is trained; a method corrects a network that is trained "
        "already. `calibrant train --loss NAME` takes one, and so does any loop in torch. What the "
        "losses came to, measured side by side, is in the appendix."
    )
    listing = table(("loss", "in words", "source"), rows)
    return pages | {"losses/index.md": _index("Losses", intro, listing)}


def _cost_of_loss(name: str) -> str:
    """Return how many times as long as torch's cross-entropy a loss takes, as measured last."""
    found = json.loads(COSTS.read_text(encoding="utf-8"))[name]
    times = [f"{one['times']:.2g} ({batch})" for batch, one in found.items()]
    return (
        f"{', '.join(times)} times the processor time of torch's cross-entropy: value and gradient "
        "of a batch (rows x classes) on one core, without the network (`python -m "
        "benchmarks.losses`)"
    )


def _needs(name: str, kind: Any) -> frozenset[str]:
    """Return what a loss needs; of some that follows from their arguments."""
    from calibrant.training.losses import make_loss

    return make_loss(name, 3).needs if kind.per_sample else kind.needs


def _worth_of_rows(name: str, kind: Any) -> str:
    """Return what a loss gives to rows that are right or wrong, more or less surely."""
    if not kind.per_sample or "features" in _needs(name, kind):
        return ""
    import torch

    from calibrant.training.losses import CrossEntropy, make_loss

    logits, target = torch.tensor([row for _, row in LOSS_ROWS]), torch.zeros(4, dtype=torch.int64)
    both = make_loss(name, 3, reduction="none"), CrossEntropy(reduction="none")
    values = [each.train()(logits, target).tolist() for each in both]
    of_rows = [
        (words, f"{own:.3f}", f"{plain:.3f}")
        for (words, _), own, plain in zip(LOSS_ROWS, *values, strict=True)
    ]
    return "## Example\n\nA row of three classes:\n\n" + table(
        ("the prediction is", f"`{name}`", "cross-entropy"), of_rows
    )


# --- commands


def _command_pages() -> dict[str, str]:
    from typer.main import get_command

    group: Any = get_command(app)
    context = group.make_context("calibrant", [], resilient_parsing=True)
    pages: dict[str, str] = {}
    listing = list[str]()
    for panel, commands in group.panels(group.list_commands(context)).items():
        found = dict[str, Any]()
        for name in commands:
            command = group.get_command(context, name)
            # One of another package may have commands of its own, such as `study run`.
            below = getattr(command, "commands", None) or {"": command}
            found |= {f"{name} {own}".strip(): each for own, each in below.items()}
        files = {name: name.replace(" ", "-") for name in found}
        rows = [
            (f"[`{name}`]({files[name]}.md)", prose(_paragraphs(command.help)[0]))
            for name, command in found.items()
        ]
        listing.append(f"## {panel}\n\n" + table(("command", "what it does"), rows))
        for name, command in found.items():
            pages[f"commands/{files[name]}.md"] = _command_page(name, command)
    intro = (
        "`calibrant COMMAND --help-all` prints the same in a terminal. A command that can't use "
        "its input ends with exit code 2 and a sentence that says why."
    )
    return pages | {"commands/index.md": _index("Commands", intro, *listing)}


def _command_page(name: str, command: Any) -> str:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    panels: dict[str, list[tuple[str, str]]] = {OWN: []}
    for each in shown:
        if each not in arguments:
            title = getattr(each, "rich_help_panel", None) or OWN
            words = ", ".join(sorted(each.opts, key=len))
            option = f"`{words} {each.metavar}`" if each.metavar else f"`{words}`"
            panels.setdefault(title, []).append((option, prose(_meaning(each))))
    taken = " ".join(each.metavar or each.name.upper() for each in arguments)
    blocks = [
        f"## {title}\n\n" + table(("option", "meaning"), rows)
        for title, rows in panels.items()
        if rows
    ]
    ending: Callable[[], str] | None = getattr(command.callback, "ending", None)
    return _page(
        f"`calibrant {name}`",
        *map(prose, _paragraphs(command.help)),
        fenced(f"calibrant {name} [OPTIONS] {taken}".strip(), "sh"),
        *(f"`{e.metavar or e.name.upper()}`: {prose(e.help or '')}" for e in arguments),
        *blocks,
        prose(ending()) if ending else "",
    )


def _paragraphs(text: str | None) -> list[str]:
    return [" ".join(each.split()) for each in inspect.cleandoc(text or "").split("\n\n")]


def _meaning(option: Any) -> str:
    text = option.help or ""
    if option.required:
        return f"{text} Required."
    if option.show_default and option.default is not None and option.default is not False:
        return f"{text} Default: {option.default}."
    return text


# --- Python


def _python_pages() -> dict[str, str]:
    intro = (
        "What one learns first is in `calibrant` itself, everything else in a package of its own. "
        "`import calibrant as cb` loads none of them before they are used."
    )
    rows = list[tuple[str, str]]()
    pages: dict[str, str] = {}
    # A name that stands in several packages has one page, in the first of them.
    places: dict[int, str] = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        stub = Path(str(module.__file__)).with_suffix(".pyi")
        own = list[tuple[str, str]]()
        for name in stub_names(stub):
            thing = getattr(module, name)
            if name == "__version__" or inspect.ismodule(thing):
                continue
            page = places.setdefault(id(thing), f"{package}.{name}")
            if page == f"{package}.{name}":
                pages[f"python/{page}.md"] = _page(f"`{page}`", *_thing(name, thing))
            own.append((f"[{name}]({page}.md)", prose(_summary(thing))))
        rows.append((_link(package), ", ".join(link for link, _ in own)))
        pages[f"python/{package}.md"] = _page(f"`{package}`", table(("name", "what it is"), own))
    listing = table(("package", "names"), rows)
    return pages | {"python/index.md": _index("Python", intro, listing)}


def _summary(thing: Any) -> str:
    if not callable(thing):
        keys = ", ".join(f"`{key}`" for key in thing) if hasattr(thing, "__iter__") else ""
        return f"A `{type(thing).__name__}`: {keys}."
    return Docstring.of(thing).summary


def _thing(name: str, thing: Any) -> Iterator[str]:
    if not callable(thing):
        yield prose(_summary(thing))
        return
    yield fenced(textwrap.fill(f"{name}{_signature(thing)}", 84, **BROKEN), "python")
    yield _text_of(thing)
    if inspect.isclass(thing):
        base = cb.Calibrator if issubclass(thing, cb.Calibrator) else object
        rows = [
            (f"`{member}`", prose(Docstring.of(found).summary))
            for member, found in inspect.getmembers(thing)
            if not member.startswith("_") and _is_own(found) and inspect.getdoc(found)
            if thing is base or found is not getattr(base, member, None)
        ]
        if rows:
            yield table(("member", "what it does"), rows)
        if base not in (thing, object):
            yield "It has all members of [Calibrator](calibrant.Calibrator.md) too."


def _is_own(member: Any) -> bool:
    if isinstance(member, property):
        member = member.fget
    return callable(member) and str(getattr(member, "__module__", "")).startswith("calibrant")


def _signature(thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):
        return "(...)"
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _text_of(thing: Any) -> str:
    text = Docstring.of(thing)
    parts = [prose(text.summary), *map(prose, text.paragraphs)]
    for section, title in LISTED.items():
        items = text.items(section)
        if items:
            lines = [f"- `{name}`: {prose(' '.join(m.split()))}" for name, m in items.items()]
            parts.append(f"**{title}**\n\n" + "\n".join(lines))
    for title in ("Returns", "Yields", "References"):
        parts += [f"**{title}**\n\n{prose(each)}" for each in text.sentences(title)]
    examples = inspect.cleandoc("\n".join(["", *text.sections.get("Examples", ())]))
    if ">>>" in examples:
        parts.append(fenced(examples, "pycon"))
    return "\n\n".join(parts)
