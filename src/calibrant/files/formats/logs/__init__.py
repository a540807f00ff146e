"""Logs of evaluations of language models: which file is one, and of which tool.

A format is a module with a `LogFormat` here, and a line below; other packages add theirs by the
entry point ``calibrant.formats``. Files are known by what they hold, not by their names.
"""

from __future__ import annotations

from typing import Any

from calibrant.core.plug_ins import WithPlugIns
from calibrant.files.formats.logs.answers import (
    ComparedColumns,
    Grades,
    Judges,
    Letters,
    TokenColumns,
    Uqlm,
)
from calibrant.files.formats.logs.base import LogFormat
from calibrant.files.formats.logs.helm import Helm
from calibrant.files.formats.logs.inspect_ai import InspectAi
from calibrant.files.formats.logs.lighteval import LightEval
from calibrant.files.formats.logs.lm_eval import LmEval
from calibrant.files.formats.logs.openai import OpenAi

GROUP = "calibrant.formats"
BUILT_IN: dict[str, LogFormat] = {
    "lm-eval": LmEval(),
    "inspect": InspectAi(),
    "openai": OpenAi(),
    "helm": Helm(),
    "lighteval": LightEval(),
    "letters": Letters(),
    "tokens": TokenColumns(),
    "compared": ComparedColumns(),
    "grades": Grades(),
    "uqlm": Uqlm(),
    "judge": Judges(),
}


def _check(name: str, found: Any) -> LogFormat:
    """Return a plug-in's format, or raise for what makes it unusable."""
    if not (isinstance(found, type) and issubclass(found, LogFormat)):
        raise TypeError("is no class derived from calibrant.files.formats.logs.base.LogFormat")
    return found()


LOG_FORMATS = WithPlugIns(GROUP, "format", BUILT_IN, _check)
