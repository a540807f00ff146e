"""Which keys of a file are read: nothing is guessed, and what could be two things is refused."""

from __future__ import annotations

from collections.abc import Callable, Collection

from calibrant.core.errors import PredictionsError
from calibrant.files.keys import (
    CLASS_NAMES,
    GRIDS,
    HEAD,
    LABEL_NAMES,
    LABELS,
    ONE_SCORE,
    PREDICTED,
    REFERENCE,
    SCORES,
    WEIGHT,
    FileKind,
    Keys,
    Wanted,
)

EXPECTED_KEYS = (
    "'logits' or 'probs' with 'labels', 'prob' or 'logit' of the positive class with 'labels', or "
    "'confidence' with 'pred_label' and 'true_label'"
)
# Which keys hold what a caller may ask for, where that isn't the one of its name.
OF_KIND: dict[FileKind | None, tuple[str, ...]] = {
    None: tuple(SCORES.values()),
    "binary": (*ONE_SCORE, "logits", "probs"),
    "many-labels": ("logits", "probs"),
    "tokens": ("logits", "probs"),
}
# What the Trainer of Hugging Face calls logits and labels.
TRAINER = ("predictions", "label_ids")
_HINT = "other names are told by --logits-key or --probs-key, and --labels-key"
# A message should stay readable when a file has a thousand columns.
LISTED = 12


def select(
    names: Collection[str],
    wanted: Wanted,
    source: str,
    *,
    expected: str = EXPECTED_KEYS,
    found: Collection[str] | None = None,
) -> Keys:
    """Choose what to read among the `names` of a file.

    Args:
        names: the keys of the file.
        wanted: what to read.
        source: begins the error message.
        expected: what the error message asks for.
        found: what the error message says is there, if not `names`.

    Raises:
        PredictionsError: a needed key is missing.
    """

    def first(candidates: Collection[str]) -> str:
        for name in candidates:
            if name in names:
                return name
        missing = " or ".join(f"'{name}'" for name in candidates)
        listed = _listing(names if found is None else found)
        raise PredictionsError(
            f"{source}: there is no {missing}; expected {expected} ({_HINT}); {listed}"
        )

    def truth(candidates: Collection[str]) -> str | None:
        if wanted.labels_key is not None:
            return told(wanted.labels_key, "labels")
        if scores == TRAINER[0]:
            return TRAINER[1]
        there = [name for name in candidates if name in names]
        # A file may hold the top-label form as well, with its own name of the true label.
        own = LABELS[-1] if SCORES["toplabel"] in names else None
        if own in there:
            there = (
                [own] if scores == SCORES["toplabel"] else [n for n in there if n != own] or [own]
            )
        if len(there) > 1:
            raise PredictionsError(
                f"{source}: the labels could be '{there[0]}' or '{there[1]}'; choose one by "
                "--labels-key (labels_key=)"
            )
        return there[0] if there else first(candidates) if wanted.labelled else None

    def told(name: str, what: str) -> str:
        if name not in names:
            listed = _listing(names if found is None else found)
            raise PredictionsError(f"{source}: there is no '{name}' to hold the {what}; {listed}")
        return name

    kind, scores = _scores(names, wanted, source, first, told)
    weight = WEIGHT if WEIGHT in names else None
    if wanted.weight_key is not None:
        weight = told(wanted.weight_key, "weights")
    binary = wanted.kind == "binary" or kind in ONE_SCORE
    if wanted.positive is not None and not binary:
        raise PredictionsError(
            f"{source}: '{scores}' holds no binary predictions, and only those have a positive "
            "class; for two columns of classes say so with kind='binary' (--kind binary)"
        )
    if scores == SCORES["toplabel"]:
        return Keys("toplabel", scores, truth(LABELS[::-1]), first(PREDICTED), weight=weight)
    head = tuple(key for key in HEAD if key in names)
    named = LABEL_NAMES if wanted.kind == "many-labels" else CLASS_NAMES
    called = named if named in names and not binary else None
    if len(head) == 1:
        (other,) = set(HEAD) - set(head)
        raise PredictionsError(
            f"{source}: there is a '{head[0]}' but no '{other}'; the last layer needs both, zeros "
            "where it has no bias"
        )
    return Keys(
        kind,
        scores,
        truth(LABELS),
        features="features" if "features" in names else None,
        head=head,
        reference=REFERENCE if REFERENCE in names else None,
        weight=weight,
        binary=binary,
        positive=wanted.positive,
        names=called,
        grid=wanted if wanted.kind in GRIDS else None,
    )


def _scores(
    names: Collection[str],
    wanted: Wanted,
    source: str,
    first: Callable[[Collection[str]], str],
    told: Callable[[str, str], str],
) -> tuple[FileKind, str]:
    """Return the kind of the scores and the key that holds them.

    What the Trainer of Hugging Face calls `predictions` are logits, if its `label_ids` stand by
    them. By themselves they may be anything, predicted classes too.
    """
    if wanted.scores_key is not None:
        kind = "logits" if wanted.kind in (None, "binary") else wanted.kind
        return kind, told(wanted.scores_key, kind)
    usual = OF_KIND.get(wanted.kind) or (SCORES[wanted.kind],)  # type: ignore[index]
    if set(TRAINER) <= set(names) and wanted.kind in (None, "logits"):
        own = [key for key in usual if key in names]
        if own:
            raise PredictionsError(
                f"{source}: the scores could be '{own[0]}', or '{TRAINER[0]}' with '{TRAINER[1]}'; "
                "choose by --logits-key or --probs-key, and --labels-key"
            )
        return "logits", TRAINER[0]
    others = [(kind, key) for kind, key in SCORES.items() if key in {*names} - {*usual}]
    if wanted.kind is not None and others and not any(key in names for key in usual):
        missing = " or ".join(f"'{name}'" for name in usual)
        kind, key = others[0]
        raise PredictionsError(
            f"{source}: there is no {missing}; the file holds '{key}', which are='{_are(kind)}' "
            f"(--are {_are(kind)}) reads; {_listing(names)}"
        )
    scores = first(usual)
    return next(kind for kind, key in SCORES.items() if key == scores), scores


def _are(kind: str) -> str:
    return "confidence" if kind == "toplabel" else kind


def _listing(names: Collection[str]) -> str:
    if not names:
        return "found nothing"
    shown = [repr(name) for name in list(names)[:LISTED]]
    return "found " + ", ".join(shown) + (", ..." if len(names) > LISTED else "")
