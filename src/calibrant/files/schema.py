"""Which fields of a file are read, and as what: nothing is guessed, what is ambiguous is refused.

A field is a key of a file of arrays or a column of a table. What it is used for is its role:
`scores`, `labels`, `weight` and so on. Everything here is decided from names, shapes and types,
before a row is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

from calibrant.core.errors import PredictionsError
from calibrant.core.text import first_few, names_in
from calibrant.files.formats.base import (
    CLASS_NAMES,
    HEAD,
    LABEL_NAMES,
    OF_THE_NETWORK,
    REFERENCE,
    RowReader,
)
from calibrant.files.formats.numpy_files import LABELS
from calibrant.files.formats.tables import STEMS
from calibrant.files.options import ReadOptions, RowKind, ScoresAre

# What scores are once percent and logarithms are undone.
Form = Literal["logits", "probs", "toplabel", "prob", "logit", "score"]
FileKind = Literal["logits", "probs", "toplabel", "prob", "logit", "score", "binary"]
# The names that scores of each kind usually have, in the order in which they are looked for.
USUAL: dict[ScoresAre, tuple[str, ...]] = {
    "logits": ("logits",),
    "probs": ("probs",),
    "prob": ("prob",),
    "logit": ("logit",),
    "confidence": ("confidence",),
}
OF_ARE: dict[ScoresAre, tuple[str, ...]] = {
    **USUAL,
    "log-probs": ("log_probs", "logprobs"),
    "percent": ("probs", "confidence", "prob"),
    "score": ("score",),
}
# Scores that go by no name of their own, as the first of a pair of tensors.
ANY_SCORES = "scores"
ONE_SCORE = ("prob", "logit")
# One number a row, about the predicted class: a confidence, or any score.
TOP_ONLY = ("toplabel", "score")
# What they are called elsewhere, which is taken where nothing else is.
TRUTH = re.compile(
    r"labels?|truths?|targets?|gts?|gold|ground_?truths?|y|y_?(true|test)|true|actual|"
    r"(true|gt|gold|target)_?(labels?|class)"
)
PREDICTED = ("pred_label", "predicted")
CORRECT = "correct"
WEIGHT = "weight"
# What the Trainer of Hugging Face calls logits and labels.
TRAINER = ("predictions", "label_ids")
EXPECTED_KEYS = (
    "'logits' or 'probs' with 'labels', 'prob' or 'logit' of the positive class with 'labels', or "
    "'confidence' with 'pred_label' and 'true_label', or with 'correct'"
)
EXPECTED_COLUMNS = (
    "the columns label with logit_0, logit_1, ... or prob_0, prob_1, ..., label with prob or logit "
    "of the positive class, or true_label, pred_label, confidence, or columns named after classes "
    "that --classes names"
)
_HINT = "--scores with --are, and --labels, name other columns"
# What follows the name of a class in those of columns.
OF_SCORES = re.compile(
    r"[\W_](probs?|proba|probability|logits?|scores?|conf|confidence|softmax|percent|pct|pred(iction)?)$",
    flags=re.I,
)
# A message should stay readable when a file has a thousand columns.
LISTED = 12


@dataclass(frozen=True)
class ColumnMap:
    """What is read of a file, and as what.

    Attributes:
        form: what the scores are.
        fields: for each role the fields that hold it, in their order.
        wide: roles whose fields are the columns of one array.
        are: what the scores were said to be, where that has to be undone: percent, log-probs.
        kind: what a row holds, if it isn't one prediction; see `ReadOptions`.
        class_names: of the classes or of many labels, in their order, where they are known.
        numbered: whether numbers as labels count these classes; False for names of columns, whose
            order nobody said to be that of numbers.

    The role `rival` is of probabilities that stand beside logits, where nobody said which to read.
    """

    form: Form
    fields: Mapping[str, tuple[str, ...]]
    wide: frozenset[str] = frozenset()
    are: ScoresAre | None = None
    kind: RowKind | None = None
    class_names: tuple[str, ...] | None = None
    numbered: bool = True

    @property
    def binary(self) -> bool:
        """Whether the scores are about one event."""
        return self.kind == "binary" or (self.kind is None and self.form in ONE_SCORE)

    @property
    def grid(self) -> bool:
        """Whether a row holds several predictions."""
        return self.kind in ("many-labels", "tokens")

    @property
    def worded(self) -> bool:
        """Whether labels may be names of classes."""
        if self.grid:
            return False
        return self.binary or self.class_names is not None or self.form in TOP_ONLY

    def named(self, roles: Collection[str]) -> tuple[str, ...]:
        """Return the fields of some roles."""
        return tuple(name for role in roles for name in self.fields.get(role, ()))


def choose(file: RowReader, options: ReadOptions) -> ColumnMap:
    """Choose what is read of an open file.

    Raises:
        PredictionsError: a needed field is missing, there twice, or could be one of several.
    """
    return _Choice(file, options).map()


class _Choice:
    """One choice; `groups` are numbered columns and such as are named after classes."""

    def __init__(self, file: RowReader, options: ReadOptions) -> None:
        self.file, self.options, self.where = file, options, file.where
        self.header = list(file.names())
        self.listing = _listing(self.header)
        self.many = options.kind == "many-labels"
        self.numbered: dict[str, list[tuple[int, str]]] = {}
        self.called: dict[str, list[tuple[str, str]]] = {}
        self.single: dict[str, int] = {}
        self._group()
        for key, columns in self.called.items():
            self._check_called(key, [name for name, _ in columns])

    def _group(self) -> None:
        """Sort the fields: numbered columns, columns named after classes, and others."""
        lists = set(self.file.lists())
        keys = {stem: key for key, stem in STEMS.items()}
        if self.many:
            keys |= {"label": "labels", WEIGHT: WEIGHT}
        told = (
            self.options.scores,
            self.options.labels,
            self.options.weight if self.many else None,
        )
        stems = [name for name in told if isinstance(name, str)]
        keys |= {stem: stem for stem in stems if stem not in keys and stem not in self.header}
        if {*LABELS, "label"}.isdisjoint(self.header):
            keys.setdefault("label", "labels")  # one-hot columns
        pattern = re.compile(rf"({'|'.join(map(re.escape, keys))})_(.+)", flags=re.S)
        for name in self.header:
            match = pattern.fullmatch(name) if self.file.tabular else None
            if match and re.fullmatch(r"[0-9]{1,99}", match[2]):
                self.numbered.setdefault(keys[match[1]], []).append((int(match[2]), name))
            elif (
                match
                and name not in lists
                and (match[1] not in ("feature", "label") or self.many)
                and not match[2].isdigit()
            ):
                self.called.setdefault(keys[match[1]], []).append((match[2], name))
            elif self.file.tabular and name in (*STEMS, *OF_THE_NETWORK) and name not in lists:
                continue  # in a table these aren't arrays
            self.single[name] = self.single.get(name, 0) + 1

    @cached_property
    def known(self) -> set[str]:
        """What may be asked for by name."""
        return {*self.numbered, *self.called, *self.single}

    def map(self) -> ColumnMap:
        """Return what is read."""
        options = self.options
        are, scores = self._scores()
        form = self._form(are, scores)
        fields: dict[str, tuple[str, ...]] = {}
        wide: set[str] = set()
        names: tuple[str, ...] | None = None
        fields["scores"], names = self._columns(scores, wide, "scores")
        binary = options.kind == "binary" or (options.kind is None and form in ONE_SCORE)
        if options.positive is not None and not binary:
            raise PredictionsError(
                f"{self.where}: '{scores}' holds no binary predictions, and only those have a "
                "positive class; for two columns of classes say so with kind='binary' "
                "(--kind binary)"
            )
        if form in TOP_ONLY:
            roles = self._roles_of_confidence(form)
        else:
            roles = {"labels": self._labels(LABELS, str(scores))}
        weight = WEIGHT if WEIGHT in self.known else None
        if options.weight is not None:
            weight = self._told(options.weight, "weights")
        roles["weight"] = weight
        for role in ("cluster", "id"):
            told = getattr(options, role)
            if role == "cluster" and told is None:
                told = self.file.cluster
            if told is not None and told not in self.known:
                raise PredictionsError(f"{self.where}: there is no column '{told}'", self.listing)
            roles[role] = told
        if form not in TOP_ONLY and not self.grid:
            roles |= {"features": "features" if "features" in self.known else None}
            roles |= self._of_network()
        called = None
        if not binary and form not in TOP_ONLY:
            called = LABEL_NAMES if self.many else CLASS_NAMES
            roles["names"] = called if called in self.known else None
        for role, key in roles.items():
            if key is None:
                continue
            fields[role], own = self._columns(key, wide, role)
            if own is not None and names is not None and (role == "labels" or self.many):
                fields[role] = self._same_order(own, names, fields[role], key)
            elif own is not None and role == "labels" and not options.classes:
                raise PredictionsError(
                    f"{self.where}: the labels stand in columns named after classes, such as "
                    f"'{fields[role][0]}', but the scores don't; name the classes in their order "
                    "by --classes (classes=)"
                )
        both = scores == "logits" and "probs" in self.known
        if both and (options.are, options.scores, options.kind) == (None, None, None):
            # What can't be read isn't meant.
            with suppress(PredictionsError):
                fields["rival"], _ = self._columns("probs", wide, "rival")
        numbered = True
        if options.classes:
            names = tuple(options.classes)
        elif names is not None:
            numbered = False
        elif not binary and form not in TOP_ONLY:
            label = fields.get("labels", (None,))[0]
            names = self.file.class_names(label)
        return ColumnMap(
            form,
            fields,
            frozenset(wide),
            are if are in ("percent", "log-probs") else None,
            options.kind,
            None if binary else names,
            numbered,
        )

    @property
    def grid(self) -> bool:
        """Whether a row holds several predictions."""
        return self.options.kind in ("many-labels", "tokens")

    # --- scores

    def _scores(self) -> tuple[ScoresAre, str | tuple[str, ...]]:
        """Return what the scores are, and what holds them."""
        options = self.options
        told = options.scores
        if isinstance(told, str) and told not in self.known:
            listed = tuple(names_in(told))
            found = None if {*listed} <= self.known else self._of_pattern(told)
            if found is None and "," in told:
                found = listed
            told = told if found is None else found[0] if len(found) == 1 else found
        if told is not None:
            for name in [told] if isinstance(told, str) else told:
                self._told(name, "scores")
            return self._said(options.scores or ""), told if isinstance(told, str) else tuple(told)
        return self._usual()

    def _said(self, name: str | Sequence[str]) -> ScoresAre:
        """Return what told scores are: as was said, or as their name says."""
        if self.options.are is not None:
            return self.options.are
        stem = name.removesuffix("_*") if isinstance(name, str) else ""
        stems = {"logit": "logits", "prob": "probs"} if stem != name else {}
        for are, keys in OF_ARE.items():
            if stems.get(stem) == are or (stem == name and stem in keys):
                return are
        if name == TRAINER[0] and TRAINER[1] in self.known:
            return "logits"
        raise PredictionsError(
            f"{self.where}: say what '{name if isinstance(name, str) else ','.join(name)}' holds: "
            "--are logits, probs, log-probs or percent for a score for each class; prob or "
            "logit for one of the positive class; confidence for one of the predicted class; "
            "score for any number that is higher where that class is likelier right (are=)"
        )

    def _of_pattern(self, pattern: str) -> tuple[str, ...] | None:
        """Return the columns that a pattern finds, by their numbers where they are numbered."""
        if not re.search(r"[*?\[]", pattern):
            return None
        found = [name for name in self.header if fnmatchcase(name, pattern)]
        if not found:
            raise PredictionsError(
                f"{self.where}: no column matches the pattern '{pattern}'", self.listing
            )
        ends = ends_of(found)
        digits = [end.isdigit() for end in ends]
        if any(digits) and not all(digits):
            odd, even = found[digits.index(False)], found[digits.index(True)]
            raise PredictionsError(
                f"{self.where}: the pattern '{pattern}' finds numbered columns such as '{even}', "
                f"and '{odd}'; name the columns instead, separated by commas"
            )
        if all(digits):
            numbers = [int(end) for end in ends]
            stem = found[0].removesuffix(ends[0])
            _check_numbers(numbers, stem, self.where)
            found = [name for _, name in sorted(zip(numbers, found, strict=True))]
        return tuple(found)

    def _usual(self) -> tuple[ScoresAre, str | tuple[str, ...]]:
        """Return the scores that go by a usual name.

        What the Trainer of Hugging Face calls `predictions` are logits, if its `label_ids` stand by
        them. By themselves they may be anything, predicted classes too.
        """
        options, are = self.options, self.options.are or self.file.are
        usual: dict[ScoresAre, tuple[str, ...]] = dict(USUAL) if are is None else {are: OF_ARE[are]}
        if options.kind == "binary" and are is None:
            usual = {one: USUAL[one] for one in ("prob", "logit", "logits", "probs")}
        elif self.grid and are is None:
            usual = {one: USUAL[one] for one in ("logits", "probs")}
        elif self.grid and are in ONE_SCORE:
            usual = {are: (f"{are}s",)}
        keys = [key for each in usual.values() for key in each]
        trained = set(TRAINER) <= self.known and options.kind in (None, "binary")
        if trained and are in (None, "logits"):
            own = [key for key in keys if key in self.known]
            if own:
                raise PredictionsError(
                    f"{self.where}: the scores could be '{own[0]}', or '{TRAINER[0]}' with "
                    f"'{TRAINER[1]}'; choose by --scores and --labels"
                )
            return "logits", TRAINER[0]
        for one, each in usual.items():
            for key in each:
                if key in self.known:
                    return one, key
        if are is not None and ANY_SCORES in self.known:
            return are, ANY_SCORES
        by_class = self._by_class()
        if by_class is not None:
            return by_class
        if self.file.hint():
            raise PredictionsError(f"{self.where}: {self.file.hint()}")
        others = [(one, key) for one, each in OF_ARE.items() for key in each if key in self.known]
        if are is not None and others:
            one, key = others[0]
            missing = " or ".join(f"'{name}'" for name in keys)
            raise PredictionsError(
                f"{self.where}: there is no {missing}; the file holds '{key}', which are='{one}' "
                f"(--are {one}) reads",
                self.listing,
            )
        raise self._missing(keys)

    def _by_class(self) -> tuple[ScoresAre, tuple[str, ...]] | None:
        """Return columns that bear just the names of the classes that were told."""
        names, are = self.options.classes, self.options.are
        there = [name for name in names if name in self.single]
        if not there:
            return None
        absent = [name for name in names if name not in self.single]
        if absent:
            raise PredictionsError(f"{self.where}: there is no column '{absent[0]}' of a class")
        if are is None:
            raise PredictionsError(
                f"{self.where}: columns named after classes may hold logits or probabilities; say "
                "which by --are logits or --are probs (are=)"
            )
        return are, tuple(names)

    def _form(self, are: ScoresAre, scores: str | tuple[str, ...]) -> Form:
        """Return what the scores are once percent and logarithms are undone."""
        if self.options.kind in ("many-labels", "tokens"):
            return "logits" if are in ("logits", "logit") else "probs"
        if are == "log-probs":
            return "logits"
        if are != "percent":
            return "toplabel" if are == "confidence" else are
        single = scores if isinstance(scores, str) else scores[0] if len(scores) == 1 else None
        if single is None or single in self.numbered or single in self.called:
            return "probs"
        if self.file.tabular and single not in self.file.lists():
            flat = True
        else:
            flat = len(self.file.shape(single)) == 1
        if not flat:
            return "probs"
        options = self.options
        top = options.predicted is not None or options.correct is not None
        usual = not {*PREDICTED, CORRECT}.isdisjoint(self.known) and options.kind is None
        return "toplabel" if top or usual else "prob"

    # --- what stands beside the scores

    def _roles_of_confidence(self, form: Form) -> dict[str, str | None]:
        """Return the column that tells whether each confidence, or score, is right."""
        options = self.options
        predicted = next((name for name in PREDICTED if name in self.known), None)
        if options.correct is not None:
            return {"correct": self._told(options.correct, "outcomes")}
        if options.predicted is not None:
            predicted = self._told(options.predicted, "predicted classes")
        elif predicted is None and CORRECT in self.known and options.labels is None:
            return {"correct": CORRECT}
        if predicted is None and form == "score" and not options.labelled:
            return {}
        if predicted is None:
            raise self._missing([CORRECT, *PREDICTED] if form == "score" else [*PREDICTED])
        return {"labels": self._labels(LABELS[::-1], "confidence"), "predicted": predicted}

    def _labels(self, candidates: Sequence[str], scores: str) -> str | None:
        """Return what holds the true labels."""
        told = self.options.labels
        if told is not None:
            # Beside `.npy` scores they are a file, which is open by now.
            apart = self.file.expected is not None and str(told) not in self.known
            return self._told("labels" if apart else str(told), "labels")
        if scores == TRAINER[0] and TRAINER[1] in self.known:
            return TRAINER[1]
        there = [name for name in candidates if name in self.known]
        # A file may hold the top-label form as well, with its own name of the true label.
        own = LABELS[-1] if "confidence" in self.known else None
        if own in there:
            there = [own] if scores == "confidence" else [n for n in there if n != own] or [own]
        if len(there) > 1:
            raise PredictionsError(
                f"{self.where}: the labels could be '{there[0]}' or '{there[1]}'; choose one by "
                "--labels (labels=)"
            )
        if not there and self.options.labelled:
            there = [name for name in self.single if TRUTH.fullmatch(name.lower())]
            if len(there) != 1:
                raise self._unlabelled(candidates)
        return there[0] if there else None

    def _of_network(self) -> dict[str, str | None]:
        head = [key for key in HEAD if key in self.known]
        if len(head) == 1:
            (other,) = set(HEAD) - set(head)
            raise PredictionsError(
                f"{self.where}: there is a '{head[0]}' but no '{other}'; the last layer needs "
                "both, zeros where it has no bias"
            )
        return {key: key for key in (*head, *({REFERENCE} & self.known))}

    # --- from keys to fields

    def _told(self, name: str, what: str) -> str:
        if name not in self.known:
            raise PredictionsError(
                f"{self.where}: there is no '{name}' to hold the {what}", self.listing
            )
        return name

    def _unlabelled(self, candidates: Sequence[str]) -> PredictionsError:
        """Return the error for a file whose scores are found and whose labels aren't."""
        missing = " or ".join(f"'{name}'" for name in candidates)
        usual = f"expected {self.file.expected}; " if self.file.expected else ""
        return PredictionsError(
            f"{self.where}: there is no {missing}",
            "if another field holds the labels, name it with --labels (labels=); rows without "
            "labels can't be measured or fitted to, but 'calibrant apply' gives them calibrated "
            "confidences, and 'calibrant monitor' their expected accuracy; "
            f"{usual}{self.listing}",
        )

    def _missing(self, candidates: Sequence[str]) -> PredictionsError:
        missing = " or ".join(f"'{name}'" for name in candidates)
        usual = EXPECTED_COLUMNS if self.file.tabular else EXPECTED_KEYS
        return PredictionsError(
            f"{self.where}: there is no {missing}",
            f"expected {self.file.expected or usual} ({_HINT}); {self.listing}",
        )

    def _columns(
        self, key: str | tuple[str, ...], wide: set[str], role: str
    ) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Return the fields that hold a key, and the classes that they are named after."""
        if not isinstance(key, str):
            wide.add(role)
            ends = key if set(self.options.classes) <= set(key) and self.options.classes else None
            ends = ends or ends_of(key)
            names = None if all(end.isdigit() for end in ends) else ends
            return self._in_order(names, key)
        if key in self.called and key not in self.single:
            wide.add(role)
            columns = self.called[key]
            names = tuple(name for name, _ in columns)
            return self._in_order(names, tuple(field for _, field in columns))
        if key in self.numbered and key not in self.single:
            wide.add(role)
            stem = STEMS.get(key, "label" if key == "labels" else key)
            _check_numbers([number for number, _ in self.numbered[key]], f"{stem}_", self.where)
            return tuple(name for _, name in sorted(self.numbered[key])), None
        if self.single[key] > 1:
            raise PredictionsError(f"{self.where}: the column '{key}' occurs twice")
        return (key,), None

    def _in_order(
        self, names: tuple[str, ...] | None, fields: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """Return columns named after classes in the order of the classes that were told."""
        told = tuple(self.options.classes)
        if names is None or not told or self.many:
            return fields, names
        of = dict(zip(names, fields, strict=True))
        absent = [name for name in told if name not in of]
        if absent:
            raise PredictionsError(f"{self.where}: there is no column '{absent[0]}' of a class")
        left = [name for name in names if name not in told]
        if left:
            raise PredictionsError(
                f"{self.where}: the column '{of[left[0]]}' belongs to none of the classes in "
                "--classes (classes=)"
            )
        return tuple(of[name] for name in told), told

    def _same_order(
        self, found: tuple[str, ...], names: tuple[str, ...], fields: tuple[str, ...], key: str
    ) -> tuple[str, ...]:
        """Return columns of many labels in the order in which their scores stand."""
        odd = sorted(set(found) ^ set(names))
        if odd:
            there, lacking = ("scores", key) if odd[0] in names else (key, "scores")
            raise PredictionsError(
                f"{self.where}: the label '{odd[0]}' has a column among the {there}, but none "
                f"among the {lacking}"
            )
        return tuple(fields[found.index(name)] for name in names)

    def _check_called(self, key: str, names: list[str]) -> None:
        """Refuse columns named after classes where others could be meant."""
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise PredictionsError(f"{self.where}: there are two columns of the class '{twice}'")
        if key in self.numbered and self.options.scores is None:
            stem = STEMS.get(key, key)
            raise PredictionsError(
                f"{self.where}: '{key}' could be '{stem}_{self.numbered[key][0][0]}', ... or the "
                f"columns named after classes, such as '{names[0]}'; leave one of them out, or "
                "choose the columns by --scores and --are"
            )


def ends_of(names: Sequence[str]) -> tuple[str, ...]:
    """Return what follows the stem that names share, such as ``prob_``; the names if none."""
    stem = names[0]
    while stem and not all(name.startswith(stem) for name in names):
        stem = stem[:-1]
    if len(names) == 1 or all(n[len(stem) :].isdigit() for n in names):
        stem = re.sub(r"[0-9]+$", "", stem)
    else:
        # What names share by chance, such as the c of cat and cow, is no stem.
        stem = re.sub(r"[^\W_]+$", "", stem)
    ends = tuple(name.removeprefix(stem) for name in names)
    last = {match[0] for end in ends for match in [OF_SCORES.search(end)] if match}
    shared = last.pop() if len(last) == 1 else ends[0][-1:] if stem else ""
    if shared.isalnum() or not all(len(e) > len(shared) and e.endswith(shared) for e in ends):
        return ends
    return tuple(end.removesuffix(shared) for end in ends)


def _check_numbers(numbers: list[int], stem: str, where: str) -> None:
    present = set(numbers)
    for number in range(max(numbers) + 1):
        if number not in present:
            raise PredictionsError(
                f"{where}: the column '{stem}{number}' is missing, though there is a "
                f"'{stem}{max(numbers)}'; the numbers must run from 0 without gaps"
            )
    if len(numbers) > len(present):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise PredictionsError(f"{where}: the column '{stem}{twice}' occurs twice")


def _listing(names: Collection[str]) -> str:
    return f"found {first_few([*map(repr, names)], LISTED) or 'nothing'}"
