"""The commands `methods` and `metrics`: what there is, and what to know of each before choosing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from calibrant.cli.options import OutputOptions, complete_method, complete_metric
from calibrant.cli.output import emit
from calibrant.core.docstrings import Argument
from calibrant.core.text import counted, listed, wrap
from calibrant.evaluation.formatting import sentence


def methods(
    output: OutputOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, or a chain such as svs+top-rest. Default: all methods.",
            autocompletion=complete_method,
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the methods that recalibrate, or explain one: formula, arguments, limits, source."""
    from calibrant.posthoc import registry

    if name is None:
        found = registry.all_described()
        families: dict[str, list[Any]] = {}
        for each in found:
            families.setdefault(each.facts.family if each.facts else "plug-ins", []).append(each)
        parts = [
            f"{family[0].upper()}{family[1:]}\n"
            + "\n".join(_entry(each.method, each.formula) for each in members)
            for family, members in families.items()
        ]
        closing = f"{counted(len(found), 'method')}. calibrant methods NAME explains one. Methods "
        "can be chained: svs+top-rest applies svs, then top-rest."
        emit(
            "\n\n".join([*parts, wrap(closing)]),
            {"methods": [e.as_dict() for e in found]},
            output.json,
        )
        return
    each = registry.described(name)
    keeps = "keeps every predicted class" if each.keeps else "may change predicted classes"
    needs = f"; needs {listed(each.needs)}" if each.needs else ""
    lines = [f"{each.method}: {keeps}{needs}", wrap(each.formula), *map(_paragraph, each.text)]
    if each.facts:
        lines += [
            _entry("cost of a fit", each.facts.cost),
            _entry("when it fails", each.facts.fails),
        ]
    lines += _arguments(each.arguments, "--set KEY=VALUE")
    lines += [_entry("source", source) for source in each.sources]
    emit("\n\n".join(lines), each.as_dict(), output.json)


def metrics(
    output: OutputOptions,
    name: Annotated[
        str | None,
        typer.Argument(
            help="A metric. Default: all metrics.",
            autocompletion=complete_metric,
            show_default=False,
        ),
    ] = None,
) -> None:
    """List the metrics, or explain one: formula, convention, cost, when it misleads, source."""
    from calibrant.metrics import registry

    if name is None:
        found = registry.all_described()
        lines = [_entry(each.metric.name, each.metric.definition) for each in found]
        closing = (
            f"{counted(len(found), 'metric')}. calibrant metrics NAME explains one; --metrics "
            "takes names separated by commas, or all."
        )
        text = "\n".join([*lines, "", wrap(closing)])
        emit(text, {"metrics": [each.as_dict() for each in found]}, output.json)
        return
    each = registry.described(name)
    better = "lower is better" if each.metric.lower_is_better else "higher is better"
    if each.metric.ideal is not None:
        better = f"{each.metric.ideal:g} is ideal"
    lines = [
        f"{each.metric.name}: {each.metric.title}, {better}",
        wrap(sentence(each.formula.removeprefix("Return ").rstrip("."))),
        *map(_paragraph, each.text),
        _entry("convention", each.metric.definition),
    ]
    if each.metric.function is not None:
        lines += [
            _entry("cost", each.metric.effort),
            _entry("misleads", each.metric.fails),
            _entry("in Python", f"calibrant.metrics.{each.metric.function.__name__}"),
        ]
    lines += _arguments(each.arguments, "in Python")
    lines += [_entry("source", source) for source in each.sources]
    emit("\n\n".join(line for line in lines if line), each.as_dict(), output.json)


def _entry(name: str, meaning: str) -> str:
    """Return a name with its meaning beside it, broken at 80 columns."""
    import textwrap

    return textwrap.fill(
        meaning,
        80,
        initial_indent=f"  {name:<20} ",
        subsequent_indent=" " * 23,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _paragraph(text: str) -> str:
    return text if "\n" in text else wrap(text)


def _arguments(arguments: dict[str, Argument], how: str) -> list[str]:
    if not arguments:
        return []
    entries = [
        _entry(name, f"{meaning.rstrip('.')}. Default: {default}.")
        for name, (default, meaning) in arguments.items()
    ]
    return ["\n".join([f"Arguments ({how}):", *entries])]
