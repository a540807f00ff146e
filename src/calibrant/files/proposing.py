"""Options that read a file which can't be read as it is, where its fields leave no doubt.

Nothing is read by what is found here: it is shown to whoever asked, as a line to paste, and only
where that line was tried.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from calibrant.core.errors import PredictionsError
from calibrant.files.assembly import NO, YES
from calibrant.files.formats import FORMATS, OF_TEXT, format_of, open_rows, plain_name
from calibrant.files.opening import extension_of, is_folder, open_binary
from calibrant.files.options import FormatName, ReadFields, ReadOptions, ScoresAre
from calibrant.files.schema import CORRECT, LABELS, PREDICTED, ends_of
from calibrant.files.seeing import ROWS, Seen, is_one_hot, kind_of_rows, seen_of
from calibrant.predictions.implausible import FEW

# How files of formats begin, whatever their names; a .pt file is a zip archive as .npz is.
MARKS: dict[FormatName, bytes] = {
    "parquet": b"PAR1", "arrow": b"ARROW1", "npy": b"\x93NUMPY", "hdf5": b"\x89HDF", "npz": b"PK\3",
    "pt": b"PK\3",
}  # fmt: skip
# What people call columns, in the order of how sure the name is.
TRUE = re.compile(
    r"(true|truth|gts?|gold|targets?|labels?|y|y_?true|y_?test|answer|outcome|obs|observed|actual|"
    r"reference|(true|actual|gt|gold|target|ground_?truth)_?(labels?|class|id|idx|y)|ground_?truth|"
    r"label_?(id|idx|true|index)|given_labels?|(val|test)_(labels?|targets?|y))"
)
SAID = re.compile(
    r"\.?(preds?|predict|predictions?|predicted|pred(icted|iction)?_?(labels?|class(es)?|id|idx|y)|"
    r"y_?(hat|pred)|said|guess|response|argmax|top_?1)"
)
RIGHT = re.compile(
    r"((is_?)?(correct|right|hit|accurate)|hits|acc|accs|accuracies|corrects?)(,.*)?"
)
GRADES = frozenset({"correct", "incorrect", "wrong"})
# One number a row that is a probability or a confidence.
CHANCE = re.compile(
    r"(.*[_ ])?(p|pd|probs?|proba|probability|scores?|confs?|confidences?|risk|chance|likelihood)"
    r"([_ ].*)?"
)
# Words for the two outcomes of an event, as columns bear them.
OUTCOMES = (("neg", "pos"), ("no", "yes"), ("false", "true"))
SCORES = re.compile(
    r"(y_)?(out|outputs?|logits?|scores?|preds?|predictions?|probs?|proba|predict_proba|softmax|"
    r"probabilities)"
)
# How many models may have their scores in one file.
MODELS = range(2, 5)
# A class behind its number, as "3: cat".
NUMBERED = re.compile(r"([0-9]{1,6})\s*[:.)_-]\s*[^\W0-9]")


def proposals(where: str, options: ReadOptions) -> Iterator[list[ReadOptions]]:
    """Yield options by which a file could be read, those first that say least; none was tried.

    Args:
        where: a path or URL that can't be read with these options.
        options: those that were given.
    """
    ways = _formats(where, options)
    if options.are is None:  # numbers may bear the sign of percent
        ways += [each.but(are="percent") for each in ways if _is_text(where, each)]
    for each in ways:
        if each.but(are=options.are) != options:
            yield [each]
        try:
            with open_rows(where, each) as file:
                if file.origin is not None:
                    continue  # a log says itself what it holds
                seen = seen_of(file)
                more, models = list(_candidates(seen)), list(_of_models(seen))
        # Whatever is wrong with the file was said before.
        except Exception:
            continue
        found = [each.but(labelled=True).but(**own) for own in more]
        yield found
        # Pixels of no class.
        yield [way.but(ignore_index=255) for way in found if way.kind == "tokens"]
        yield [each.but(labelled=True).but(**own) for own in models]
    with suppress(Exception):
        yield [options.but(**own) for own in _single_arrays(where, options)]


def _formats(where: str, options: ReadOptions) -> list[ReadOptions]:
    """Return the options with each format that a file of this name may have."""
    if options.format is not None or is_folder(where):
        return [options]
    with suppress(Exception), open_binary(where) as file:
        first = file.read(8)
        found: list[FormatName] = [name for name, mark in MARKS.items() if first.startswith(mark)]
        if found and not any(extension_of(where) in FORMATS[name].extensions for name in found):
            return [options.but(format=name) for name in found]
    try:
        format_of(where)
    except PredictionsError:
        return [options.but(format=name) for name in OF_TEXT]
    return [options]


def command(where: str, options: ReadOptions, verb: str = "measure") -> str:
    """Return the command that reads a file with these options."""
    words = ["calibrant", verb, where]
    for each in fields(options):
        value: Any = getattr(options, each.name)
        if value != each.default and each.name not in ("labelled", "beside"):
            text = ",".join(cast(Any, value)) if isinstance(value, tuple) else str(value)
            words += [f"--{each.name.replace('_', '-')}", text]
    return shlex.join(words)


def _candidates(seen: Seen) -> Iterator[ReadFields]:
    """Yield each way in which the fields could be read."""
    yield from _named_after_classes(seen)
    yield from _hot_by_class(seen)
    yield from _named_after_numbers(seen)
    yield from _of_two_words(seen)
    wide = _scores(seen)
    if wide is not None:
        scores, values = wide
        are = kind_of_rows(values)
        for labels in _labels(seen, values) if are is not None else ():
            yield _said({"scores": scores, "are": are, **labels}, seen)
        if are is not None:
            yield from _without_some(seen, scores, are, values.shape[1])
        yield from _many_labels(seen, scores, values)
    yield from _tokens(seen)
    if seen.wide:
        return
    chances = _chances(seen)
    if len(chances) == 1:
        yield from _one_score(seen, *next(iter(chances.items())))


def _chances(seen: Seen) -> dict[str, NDArray[Any]]:
    """Return the columns of one number a row that can be its score: the one, if others can't."""
    likely = {name: v for name, v in seen.single.items() if not re.search(r"time|loss", name)}
    named = {name: v for name, v in likely.items() if CHANCE.fullmatch(name.lower())}
    if not likely:  # percent in whole numbers
        return {
            name: v
            for name, v in seen.numbers.items()
            if CHANCE.fullmatch(name.lower()) and v.min() >= 0 and 2 < v.max() <= 100
        }
    shares = {name: v for name, v in named.items() if 0 <= v.min() <= v.max() <= 1}
    for found in (likely, named, shares):
        if len(found) == 1:
            return found
    return {}


def _of_models(seen: Seen) -> Iterator[ReadFields]:
    """Yield the scores of each of several models, all of one kind."""
    kinds: dict[int, ScoresAre | None]
    kinds = {values.shape[1]: kind_of_rows(values) for _, values in seen.wide}
    are = next(iter(kinds.values())) if len(kinds) == 1 else None
    # Any numbers may look like logits.
    named = are != "logits" or all(SCORES.search(str(name).lower()) for name, _ in seen.wide)
    alike = all(kind_of_rows(values) == are for _, values in seen.wide)
    if are is not None and alike and named and len(seen.wide) in MODELS:
        for scores, values in seen.wide:
            # A word behind numbers is one of names of classes.
            behind = scores.partition("*")[2] if isinstance(scores, str) else ""
            names = tuple(f"{number}{behind}" for number in range(values.shape[1]))
            more: ReadFields = {"classes": names} if behind else {}
            for own in _labels(seen, values):
                own["scores"], own["are"] = scores, are
                own.update(more)
                yield _said(own, seen)
    if any(isinstance(n, str) or kind_of_rows(v) is not None for n, v in seen.wide):
        return
    # Columns that differ in a number may be of a model each.
    numbered = {name: seen.numbers[name] for names, _ in seen.wide for name in names}
    chances = {n: v for n, v in (seen.single | numbered).items() if CHANCE.fullmatch(n.lower())}
    if len(chances) in MODELS and all(0 <= v.min() <= v.max() <= 1 for v in chances.values()):
        for name, values in chances.items():
            yield from _one_score(seen, name, values)


def of_models(found: Sequence[ReadOptions]) -> str:
    """Return what to say of options that read the scores of several models each; "" of others."""
    first, names = found[0], [each.scores for each in found]
    alike = [each.but(scores=first.scores, classes=first.classes) == first for each in found]
    if None in names or not all(alike):
        return ""
    shown = [repr(name if isinstance(name, str) else ",".join(name or ())) for name in names]
    return (
        f"the scores of {len(found)} models seem to be in it, {' and '.join(shown)}; the command "
        "reads the first, and --scores names another"
    )


def _without_some(
    seen: Seen, scores: str | tuple[str, ...], are: ScoresAre, classes: int
) -> Iterator[ReadFields]:
    """Yield labels of which one value is none of the classes, as that of rows to leave out."""
    for name, values in seen.whole.items():
        if values.dtype.kind not in "iuf" or not TRUE.fullmatch(name.lower()):
            continue
        odd = np.unique(values[(values < 0) | (values >= classes)])
        if len(odd) == 1 and int(odd[0]) in (-100, -1, 255):
            more: ReadFields = {"kind": "tokens", "ignore_index": int(odd[0])}
            yield _said({"scores": scores, "are": are, "labels": name, **more}, seen)


def _many_labels(
    seen: Seen, scores: str | tuple[str, ...], values: NDArray[Any]
) -> Iterator[ReadFields]:
    """Yield labels of which any number may be true of a row."""
    fit = [name for name, hot in seen.several.items() if hot.shape == values.shape]
    if len(fit) == 1 and isinstance(scores, str):
        shares = values.min() >= 0 and values.max() <= 1
        are: ScoresAre = "probs" if shares else "logits"
        yield _said({"scores": scores, "are": are, "labels": fit[0], "kind": "many-labels"}, seen)


def _tokens(seen: Seen) -> Iterator[ReadFields]:
    """Yield scores of tokens or pixels, whose classes lie along the axis that labels lack."""
    of_labels = {**{n: v.shape for n, v in seen.whole_rows.items()}, **seen.deep}
    for name, shape in seen.deep.items():
        fit = [
            (other, axis)
            for other, own in of_labels.items()
            for axis in range(1, len(shape))
            if other != name and shape[1:axis] + shape[axis + 1 :] == own[1:]
        ]
        if len(fit) == 1:
            labels, axis = fit[0]
            found: ReadFields = {"scores": name, "labels": labels, "kind": "tokens"}
            if axis != len(shape) - 1:
                found["class_axis"] = axis
            yield from (_said({**found, "are": are}, seen) for are in ("probs", "logits"))


def _named_after_numbers(seen: Seen) -> Iterator[ReadFields]:
    """Yield columns whose numbers, which have gaps, are those that labels are."""
    ways = [
        (numbers, columns) for numbers, columns in seen.sparse if set(columns) <= {*seen.numbers}
    ]
    for numbers, columns in ways:
        are = kind_of_rows(np.stack([seen.numbers[name] for name in columns], axis=1))
        fit = [
            name
            for name, values in seen.whole.items()
            if name not in columns and {f"{v:.0f}" for v in _numbers(values)} <= set(numbers)
        ]
        fit = [name for name in fit if TRUE.fullmatch(name.lower())] or fit
        if are in ("probs", "percent", "log-probs") and len(fit) == 1:
            own: ReadFields = {"scores": columns, "are": are, "classes": numbers, "labels": fit[0]}
            yield _said(own, seen)


def _numbers(values: NDArray[Any]) -> list[float]:
    """Return the different numbers of a column; of text none that a class could have."""
    return [-1.0] if values.dtype.kind in "US" else np.unique(values).astype(float).tolist()


def _scores(seen: Seen) -> tuple[str | tuple[str, ...], NDArray[Any]] | None:
    """Return the one field that can hold the scores of several classes."""
    if len(seen.wide) == 1:
        return seen.wide[0]
    if {"logits", "probs"} <= {name for name, _ in seen.wide}:
        return None  # who names both says which
    shares = [each for each in seen.wide if kind_of_rows(each[1]) in ("probs", "percent")]
    named = [e for e in seen.wide if isinstance(e[0], str) and SCORES.fullmatch(e[0].lower())]
    for found in (shares, named):
        if len(found) == 1:
            return found[0]
    return None


def _one_score(seen: Seen, scores: str, values: NDArray[Any]) -> Iterator[ReadFields]:
    """Yield the ways in which one number a row is a confidence, or the score of an event."""
    names = seen.whole
    share = values.min() >= 0 and values.max() <= 100
    percent: ScoresAre | None = "percent" if values.max() > 1 else None
    right = [name for name in names if RIGHT.fullmatch(name.lower())]
    right = right or [n for n, v in names.items() if v.dtype.kind in "US" and _binary(v, GRADES)]
    spelt = all(_binary(names[name], {*YES, *NO}) for name in right)
    said = [name for name in names if SAID.fullmatch(name.lower()) or name in PREDICTED]
    true = [n for n in names if TRUE.fullmatch(n.lower()) or n == LABELS[-1]]
    true = [name for name in true if name not in said]
    if not said and len(true) == 2 and LABELS[1] in true and names[true[0]].dtype.kind in "US":
        # As pipelines write them: the label that was predicted.
        said = [LABELS[1]]
        true = [name for name in true if name != LABELS[1]]
    if len(said) + len(true) == 1:  # the one other column of the same classes
        known = set(np.unique(names[(said + true)[0]]).tolist())
        other = [n for n, v in names.items() if n not in said + true and {*v.tolist()} <= known]
        said, true = (said, other) if said else (other, true)
    if right and not spelt:
        return
    if share and len(right) == 1:
        own: ReadFields = {"scores": scores, "are": percent or "confidence", "correct": right[0]}
        yield own if said else _said(own, seen)
    elif share and len(said) == len(true) == 1 and _of_long(seen, values, said[0]):
        return
    elif share and len(said) == len(true) == 1 and not _decides(values, names[said[0]]):
        top: ScoresAre = percent or "confidence"
        yield {"scores": scores, "are": top, "predicted": said[0], "labels": true[0]}
    else:
        names = {name: values for name, values in names.items() if name not in said}
        # Of one sign they may be logarithms of the confidence.
        if not share and not values.min() < 0 < values.max():
            return
        one: ScoresAre = (percent or "prob") if share else "logit"
        two = {n: v for n, v in names.items() if len(np.unique(v)) == 2 and n != scores}
        two = {name: v for name, v in two.items() if not _decides(values, v)} or two
        events = [n for n in two if n in LABELS] or [n for n in two if TRUE.fullmatch(n.lower())]
        # What is called a confidence is one in the predicted class, as a rule.
        events = events or ([] if scores.lower().startswith("conf") else list(two))
        if len(events) == 1:
            found: ReadFields = {"scores": scores, "are": one, "labels": events[0]}
            if not _binary(two[events[0]]) and set(np.unique(two[events[0]])) != {-1, 1}:
                found["positive"] = _likelier(values, two[events[0]])
            elif re.search(r"[^0-9]0$", scores) and two[events[0]].dtype.kind not in "US":
                found["positive"] = "0"
            yield _said(found, seen)


def _of_long(seen: Seen, shares: NDArray[Any], said: str) -> bool:
    """Return whether each row is one class of a prediction, with the share that this class has."""
    counts = np.unique(seen.whole[said], return_counts=True)[1]
    mean, even = float(shares.mean()), (100 if shares.max() > 1 else 1) / len(counts)
    # The first rows may cut a prediction in two.
    alike = len(counts) > 1 and np.ptp(counts) <= 1
    if alike and abs(mean - even) <= even / min(counts):
        return True
    # Of the best classes alone each prediction has as many, and none twice.
    classes = _places(seen.whole[said])
    for keys in (_places(values) for name, values in seen.whole.items() if name != said):
        rows = np.bincount(keys)
        whole = (rows == rows.max()).sum() >= len(rows) - 1 and len(rows) >= FEW
        pairs = keys * (classes.max() + 1) + classes
        if whole and rows.max() > 1 and len(np.unique(pairs)) == len(pairs):
            return True
    return False


def _predictions(seen: Seen, scores: NDArray[Any]) -> set[str]:
    """Return the columns that say in every row which of the scores is the largest.

    True labels may do so too, so that one with a name of these is spared unless another hasn't.
    """
    largest = scores.argmax(axis=1)
    if len(largest) < FEW or not np.ptp(largest):
        return set()

    def follows(values: NDArray[Any]) -> bool:
        places = _places(values)
        pairs = len(np.unique(places * scores.shape[1] + largest))
        if pairs == len(np.unique(places)) == len(np.unique(largest)):
            return True
        return scores.shape[1] == 2 and _decides(scores[:, 1], values)

    found = {name for name, values in seen.whole.items() if follows(values)}
    true = {name for name in seen.whole if TRUE.fullmatch(name.lower())}
    return found if true - found else found - true


def _places(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return values as places among the different ones."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _decides(scores: NDArray[Any], said: NDArray[Any]) -> bool:
    """Return whether what is predicted says on which side of a threshold scores of an event lie."""
    two = np.unique(said)
    if len(two) != 2 or scores.min() >= 0.5 * (1 if scores.max() <= 1 else 100):
        return False
    one, other = (scores[said == each] for each in two)
    return bool(one.max() <= other.min() or other.max() <= one.min())


def _likelier(scores: NDArray[Any], labels: NDArray[Any]) -> str:
    """Return the label of which scores are higher."""
    found = max(np.unique(labels).tolist(), key=lambda label: float(scores[labels == label].mean()))
    return found if isinstance(found, str) else f"{found:.0f}"


def _said(options: ReadFields, seen: Seen) -> ReadFields:
    """Return options without those that usual names make needless."""
    if options.get("labels") in LABELS and len({*LABELS} & {*seen.whole, *seen.hot}) < 2:
        options.pop("labels")
    if options.get("correct") == CORRECT:
        options.pop("correct")
    return options


def _labels(seen: Seen, scores: NDArray[Any]) -> list[ReadFields]:
    """Return the ways in which the one field that can hold them says the true classes."""
    classes, said = scores.shape[1], _predictions(seen, scores)

    def of(names: Sequence[str]) -> list[str]:
        names = [name for name in names if name not in said]
        names = [n for n in names if n in seen.hot or np.ptp(_places(seen.whole[n]))] or names
        usual = [name for name in names if name in LABELS]
        named = [name for name in names if TRUE.fullmatch(name.lower())]
        return usual or named or [name for name in names if not SAID.fullmatch(name.lower())]

    ways: list[tuple[list[str], ReadFields]] = []
    numbers = {n: v for n, v in seen.whole.items() if v.dtype.kind not in "US"}
    for first in (0, 1):
        fit = [n for n, v in numbers.items() if v.min() >= first and v.max() - first < classes]
        if first:
            fit = [n for n in fit if numbers[n].max() == classes]
        ways.append((of(fit), {"labels_from": first} if first else {}))
    signs = [n for n, v in numbers.items() if classes == 2 and v.min() == -1]
    ways.append((of(signs), {}))
    ways.append((of([n for n, v in seen.hot.items() if v.shape[1] == classes]), {}))
    plain = tuple(map(str, range(classes)))
    for names in {names for names in seen.names.values() if len(names) == classes} - {plain}:
        own = of([n for n, v in seen.whole.items() if set(map(str, v.tolist())) <= set(names)])
        ways.append((own, {"classes": names}))
    for name in of([n for n, v in seen.whole.items() if v.dtype.kind in "US"]):
        numbered = _numbered_words(set(seen.whole[name].tolist()), classes)
        if numbered and not {*numbered} <= {*seen.numbers}:
            ways.append(([name], {"classes": numbered}))
    found: list[ReadFields] = []
    for labels, more in ways:
        if len(labels) == 1:
            found.append({"labels": labels[0], **more})
    usual = [each for each in found if each.get("labels") in LABELS]
    named = [each for each in found if TRUE.fullmatch(str(each.get("labels")).lower())]
    return usual or named or found


def _numbered_words(words: set[str], classes: int) -> tuple[str, ...]:
    """Return the names of all classes where they bear numbers, and () where they don't.

    Some of them, where they are a word with a number; all, where the number comes first.
    """
    before = {word: NUMBERED.match(word) for word in words}
    numbers = {int(match[1]): word for word, match in before.items() if match}
    if len(numbers) == len(words) == classes and max(numbers) - min(numbers) == classes - 1:
        return tuple(numbers[number] for number in sorted(numbers))
    found = [re.fullmatch(r"(.*[^0-9])([0-9]{1,6})", word) for word in words]
    stems = {match[1] if match else "" for match in found}
    numbers = {int(match[2]) for match in found if match}
    first = 0 if 0 in numbers else 1
    if len(stems) > 1 or "" in stems or (first and classes not in numbers):
        return ()
    names = tuple(f"{min(stems)}{number}" for number in range(first, first + classes))
    return names if words <= {*names} else ()


def _named_after_classes(seen: Seen) -> Iterator[ReadFields]:
    """Yield columns that bear the names which labels are, alone or behind a stem."""
    found: dict[str, ReadFields] = {}
    for name, values in seen.whole.items():
        words = {*map(str, values.tolist())} - {""} if values.dtype.kind in "US" else set[str]()
        if len(words) < 2 or all(word.isdigit() for word in words):
            continue
        if not any(min(words, key=len) in column for column in seen.numbers):
            words = {re.sub(r"\W", ".", word) for word in words}  # as R writes them
        first = min(words, key=len)
        for column in [column for column in seen.numbers if first in column]:
            stem, _, end = column.partition(first)
            if not all(f"{stem}{word}{end}" in seen.numbers for word in words):
                continue
            plain = not stem + end
            # Classes may have no row; what bears no name of a class may be any number.
            share = [c for c in seen.numbers if c.startswith(stem) and c.endswith(end)]
            if plain:
                share = [c for c in share if c in words or c in seen.single]
            for columns in (share, [c for c in share if c[len(stem) :].removesuffix(end) in words]):
                scores = np.stack([seen.numbers[c] for c in columns], axis=1)
                are = kind_of_rows(scores)
                if name in _predictions(seen, scores):
                    continue
                sure = are in ("probs", "percent", "log-probs") or (stem and are == "logits")
                if sure and len(columns) > 1:
                    own = {"classes": tuple(columns)} if plain else {"scores": tuple(columns)}
                    found.setdefault(
                        name, _said(cast(ReadFields, {**own, "are": are, "labels": name}), seen)
                    )
                    break
    likely = [n for n in found if TRUE.fullmatch(n.lower())]
    likely = likely or [n for n in found if not SAID.fullmatch(n.lower())] or list(found)
    yield from (found[name] for name in likely)


def _hot_by_class(seen: Seen) -> Iterator[ReadFields]:
    """Yield scores and one-hot labels in columns that bear the names of the classes."""
    ends: dict[str, list[str]] = {}
    for name, values in seen.numbers.items():
        if "_" in name and np.isin(values, (0, 1)).all():
            stem, _, end = name.rpartition("_")
            ends.setdefault(stem, []).append(end)
    for labels, names in ends.items():
        hot = np.stack([seen.numbers[f"{labels}_{end}"] for end in names], axis=1)
        for column in [c for c in seen.single if len(names) > 2 and c.endswith(names[0])]:
            scores = tuple(column.removesuffix(names[0]) + end for end in names)
            if is_one_hot(hot) and {*scores} <= {*seen.single}:
                are = kind_of_rows(np.stack([seen.single[name] for name in scores], axis=1))
                yield {"scores": scores, "are": are, "labels": labels}


def _of_two_words(seen: Seen) -> Iterator[ReadFields]:
    """Yield two columns named after the outcomes of an event that labels number."""
    for words in OUTCOMES:
        found = [[name for name in seen.numbers if word in name.lower()] for word in words]
        if [len(each) for each in found] != [1, 1]:
            continue
        columns = (found[0][0], found[1][0])
        are = kind_of_rows(np.stack([seen.numbers[name] for name in columns], axis=1))
        events = [name for name, values in seen.whole.items() if _binary(values, set())]
        events = [name for name in events if TRUE.fullmatch(name.lower())] or events
        if are in ("probs", "percent") and len(events) == 1:
            own: ReadFields = {"scores": columns, "are": are, "labels": events[0]}
            yield _said({**own, "classes": ends_of(columns)}, seen)


def _is_text(where: str, options: ReadOptions) -> bool:
    """Return whether a file is read as text."""
    name = options.format or extension_of(plain_name(where)).removeprefix(".")
    return name in (*OF_TEXT, "ndjson")


def _single_arrays(where: str, options: ReadOptions) -> Iterator[ReadFields]:
    """Yield the one array beside scores of any name that can be their labels."""
    if extension_of(where) != ".npy" or options.are is not None:
        return
    beside: dict[str, NDArray[Any]] = {}
    for place in sorted(Path(where).parent.glob("*.npy")):
        with suppress(Exception):  # it is none of ours
            beside[str(place)] = np.load(place, mmap_mode="r", allow_pickle=False)
    scores = beside.pop(str(Path(where)), np.zeros(0))
    fit = {
        place: np.asarray(array).reshape(-1)[:ROWS]
        for place, array in beside.items()
        if array.dtype.kind in "iub" and array.size == len(scores)
    }
    named = {p: a for p, a in fit.items() if TRUE.fullmatch(Path(p).stem.lower())} or fit
    if scores.ndim != 2 or scores.dtype.kind != "f" or len(named) != 1:
        return
    are = kind_of_rows(np.asarray(scores[:ROWS]))
    if are is not None:
        yield {"are": are, "labels": next(iter(named))}


def _binary(values: NDArray[Any], words: Set[str] = frozenset({"true", "false"})) -> bool:
    if values.dtype.kind in "US":
        return set(np.char.lower(values).tolist()) <= words
    return bool(np.isin(values, (0, 1)).all())
