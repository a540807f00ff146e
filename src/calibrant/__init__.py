"""Calibrant calibrates the confidence of classifiers: measure, recalibrate, compare, deploy.

    import calibrant as cb

    val, test = cb.read_predictions("val.npz"), cb.read_predictions("test.npz")
    smart = cb.SMART().fit(val.logits, val.labels)
    probs = smart.predict_proba(test.logits)
    print(cb.evaluate(probs, test.labels))

What one learns first stands here; the rest in `calibrant.metrics`, `calibrant.posthoc`,
`calibrant.scale`, `calibrant.predictions`, `calibrant.training`, `calibrant.synthetic` and
`calibrant.sklearn`. The public names stand in `__init__.pyi`, here and there. Each is imported when
it is first used, so ``import calibrant`` costs next to nothing.
"""

from calibrant._version import __version__ as __version__
from calibrant.core.lazy import public_face

_RENAMED = {
    "MetricSums": "calibrant.scale.sample_of",
    "apply_shards": "Calibrator.apply_predictions",
    "evaluate_shards": "calibrant.evaluate",
    "evaluate_shards_by": "calibrant.evaluate_by",
    "evaluate_sums": "calibrant.evaluate, of what calibrant.scale.sample_of returns",
    "fit_shards": "Calibrator.fit_predictions",
    "summarise_shard": "calibrant.scale.sample_of",
}

__getattr__, __dir__ = public_face(__name__, __file__, ("sklearn", "training"), _RENAMED)
