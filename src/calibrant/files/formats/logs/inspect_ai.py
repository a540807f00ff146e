"""Logs of inspect_ai: `.eval` archives of either compression, and the same as one JSON document."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from typing import Any

from calibrant.files.formats.logs.base import (
    LogFile,
    LogFormat,
    LogTable,
    Row,
    as_list,
    as_object,
    number_of,
)
from calibrant.files.formats.logs.signals import Answer, add_answers
from calibrant.files.gate import MOST_DOCUMENT_BYTES, check_members, load_json, optional
from calibrant.files.opening import open_binary
from calibrant.files.options import ReadOptions

ZSTANDARD = 93
# What a local header of a member takes before its name.
HEADER_BYTES = 30
GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "no": 0.0}


class InspectAi(LogFormat):
    """An evaluation with its samples."""

    tool = "inspect_ai"

    def recognises(self, file: LogFile) -> bool:
        """Return whether it is an archive with a header, or a document with `eval` and `plan`."""
        if file.first_line.startswith(b"PK\x03\x04"):
            try:
                with open_binary(file.where) as raw, zipfile.ZipFile(raw) as archive:
                    return bool({"header.json", "_journal/start.json"} & {*archive.namelist()})
            except zipfile.BadZipFile:
                return False
        return {"eval", "plan"} <= file.first.keys()

    def read(self, file: LogFile, options: ReadOptions) -> LogTable:
        """Return a row a sample, or of votes a row a question."""
        header, samples = _opened(file)
        evaluation = as_object(header.get("eval"))
        version = as_object(evaluation.get("packages")).get("inspect_ai", "")
        table = LogTable(self.tool, str(version))
        task = str(evaluation.get("task", "")).rpartition("/")[2]
        answers: list[Answer] = []
        right: dict[str, dict[str, list[float]]] = {}
        for place, sample in samples:
            # Logs of 2024 have one scorer, without its name.
            scores = as_object(sample.get("scores")) or (
                {"score": sample["score"]} if sample.get("score") else {}
            )
            if not scores:
                table.leave_out(
                    "an error ended the sample" if sample.get("error") else "no scorer's value"
                )
                continue
            values = _values(scores)
            for name, value in values.items():
                if value is not None:
                    own = right.setdefault(name, {}).setdefault(str(sample.get("id")), [])
                    own.append(value)
            named = options.correct or next(iter(scores))
            if named not in values:
                known = [name for name in values if ".metadata." not in name]
                raise file.error(
                    place,
                    f"no scorer's value is called '{named}'; --correct (correct=) is one of "
                    f"{', '.join(known)}",
                )
            if values[named] in (0, 1):
                score = as_object(scores.get(named) or scores[_scorer_of(named, scores)])
                answers.append(_answer(place, sample, score, task, named, values))
            else:
                table.leave_out("its score is neither right nor wrong")
        _check_accuracy(header, right, file, table)
        if header.get("status") not in (None, "success"):
            table.notes.append(f"Its status is {header['status']}.")
        add_answers(table, answers, options, file)
        return table


def _values(scores: Row) -> dict[str, float | None]:
    """Return the values of all scorers: ``choice``, ``grader.honesty``, ``judge.metadata.sure``."""
    found: dict[str, float | None] = {}
    for scorer, each in scores.items():
        score = as_object(each)
        parts = as_object(score.get("value"))
        found |= {f"{scorer}.{key}": _value(value) for key, value in parts.items()}
        if not parts:
            found[scorer] = _value(score.get("value"))
        more = as_object(score.get("metadata"))
        numbers = {k: number_of(v) for k, v in more.items() if not isinstance(v, list | dict)}
        found |= {f"{scorer}.metadata.{k}": v for k, v in numbers.items() if v is not None}
    return found


def _scorer_of(named: str, scores: Row) -> str:
    """Return the scorer whose value, or part of a value, has a name."""
    return next(scorer for scorer in scores if named.startswith(f"{scorer}."))


def _value(value: Any) -> float | None:
    """Return a scorer's value as a number; None for what isn't one."""
    return GRADES[value] if isinstance(value, str) and value in GRADES else number_of(value)


# Parameters: a sample, and which of its scores says whether it is right.
def _answer(
    place: str,
    sample: Row,
    score: Row,
    task: str,
    named: str,
    values: dict[str, float | None],
) -> Answer:
    output = as_object(sample.get("output"))
    choice = as_object(next(iter(as_list(output.get("choices"))), None))
    content = as_object(choice.get("message")).get("content")
    parts = [as_object(part).get("text", "") for part in as_list(content)]
    text = output.get("completion") or ("".join(map(str, parts)) if parts else content)
    target = sample.get("target")
    golds = as_list(target) or [target]
    letters = [chr(ord("A") + i) for i in range(len(as_list(sample.get("choices"))))]
    gold = str(golds[0]).strip() if len(golds) == 1 else None
    if letters and gold not in letters:
        gold = None
    said = score.get("answer")
    others = {name: value for name, value in values.items() if name != named}
    metadata = as_object(sample.get("metadata"))
    groups = {
        key: metadata[key] for key in ("subject", "category") if isinstance(metadata.get(key), str)
    }
    tokens = [as_object(t) for t in as_list(as_object(choice.get("logprobs")).get("content"))]
    return Answer(
        place,
        f"{task}/{sample.get('id')}",
        str(text or ""),
        tokens,
        None if said is None else str(said),
        gold,
        values[named],
        letters,
        {"task": task, "id": str(sample.get("id")), **groups, **others},
    )


# Parameters: a header, what was found, and where both go.
def _check_accuracy(
    header: Row, right: dict[str, dict[str, list[float]]], file: LogFile, table: LogTable
) -> None:
    """Raise `PredictionsError` unless the log's own accuracies come out of its samples."""
    checked: list[str] = []
    for result in as_list(as_object(header.get("results")).get("scores")):
        name = str(as_object(result).get("scorer", as_object(result).get("name")))
        stated = as_object(as_object(as_object(result).get("metrics")).get("accuracy")).get("value")
        reducer = as_object(result).get("reducer")
        if name not in right or not isinstance(stated, int | float):
            continue
        if reducer not in (None, "mean"):
            continue  # another statistic of the epochs than their mean
        means = [sum(values) / len(values) for values in right[name].values()]
        file.check_mean(f"the accuracy of '{name}'", stated, sum(means) / len(means))
        checked.append(f"{name} {stated:.1%}")
    if checked:
        table.checked = True
        table.notes.append(f"Its own accuracy comes out of its samples: {', '.join(checked)}.")


# --- archives


def _opened(file: LogFile) -> tuple[Row, list[tuple[str, Row]]]:
    """Return the header of a log and its samples, each with what messages call it."""
    if not file.first_line.startswith(b"PK"):
        samples = [as_object(one) for one in as_list(file.first.get("samples"))]
        return file.first, [(f"sample {one.get('id')}", one) for one in samples]
    with open_binary(file.where) as raw, zipfile.ZipFile(raw) as archive:
        check_members(archive, file.where)
        names = archive.namelist()
        start = "header.json" if "header.json" in names else "_journal/start.json"
        header = as_object(_member(archive, raw, start, file))
        found = [
            (name, as_object(_member(archive, raw, name, file)))
            for name in names
            if name.startswith("samples/") and name.endswith(".json")
        ]
    return header, found


def _member(archive: zipfile.ZipFile, raw: Any, name: str, file: LogFile) -> Any:
    """Return the JSON of a member; before 3.14 Python can't unpack Zstandard by itself."""
    info = archive.getinfo(name)
    if info.file_size > MOST_DOCUMENT_BYTES:
        raise file.error(name, "is too large")
    if info.compress_type != ZSTANDARD or hasattr(zipfile, "ZIP_ZSTANDARD"):
        return load_json(archive.read(name), file.where, name)
    return load_json(b"".join(_unpacked(raw, info)), file.where, name)


def _unpacked(raw: Any, info: zipfile.ZipInfo) -> Iterator[bytes]:
    """Yield the frames of a member."""
    zstandard = optional("zstandard", "zstandard", "logs")
    raw.seek(info.header_offset)
    lengths = struct.unpack("<HH", raw.read(HEADER_BYTES)[26:])
    raw.seek(info.header_offset + HEADER_BYTES + sum(lengths))
    packed, size = raw.read(info.compress_size), 0
    while packed:
        frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
        part = frame.decompress(packed)
        size += len(part)
        if size > MOST_DOCUMENT_BYTES:
            return
        yield part
        packed = frame.unused_data
