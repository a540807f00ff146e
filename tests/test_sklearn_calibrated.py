"""`Calibrated`: any classifier of scikit-learn with a calibrator behind it, and the display."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier
from sklearn.metrics import brier_score_loss, log_loss
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier
from sklearn.utils.estimator_checks import estimator_checks_generator

import calibrant as cb
from calibrant.core.errors import InputError, PredictionsError
from calibrant.sklearn import Calibrated, ReliabilityDisplay
from calibrant.sklearn.scores import Pool, Scores, floor_of, scores_of

BINARY = make_classification(
    400, 6, n_informative=3, n_clusters_per_class=1, class_sep=1.2, flip_y=0.1, random_state=0
)
FLOWERS = load_iris(return_X_y=True)


def checks():
    for estimator, check in estimator_checks_generator(
        Calibrated(GaussianNB(), method="temperature", cv=3)
    ):
        name = check.func.__name__
        if name != "check_array_api_input":  # asks for SCIPY_ARRAY_API, to pass nothing on
            yield pytest.param(estimator, check, id=f"{name}-{len(check.keywords)}")


@pytest.mark.parametrize(("estimator", "check"), list(checks()))
@pytest.mark.filterwarnings("ignore")
def test_it_keeps_the_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "estimator",
    [
        LinearSVC(),  # margins
        Perceptron(),
        RidgeClassifier(),
        GaussianNB(),  # probabilities only
        KNeighborsClassifier(),  # of which many are 0
        make_pipeline(StandardScaler(), LogisticRegression()),
        SVC(),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
@pytest.mark.parametrize("data", [BINARY, FLOWERS], ids=["two", "three"])
@pytest.mark.filterwarnings("ignore::calibrant.CalibrationWarning")
def test_it_makes_any_classifier_say_probabilities_by_label(estimator, data):
    X, y = data
    names = np.array(["owl", "ant", "bee"])[y]
    model = Calibrated(estimator, method="temperature", cv=3).fit(X, names)
    assert model.classes_.tolist() == sorted(set(names.tolist()))
    probs = model.predict_proba(X)
    assert probs.shape == (len(X), len(model.classes_))
    np.testing.assert_allclose(probs.sum(axis=1), 1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[probs.argmax(axis=1)])
    assert model.score(X, names) > 0.65
    # The columns belong to the labels: the truth is likely.
    assert log_loss(names, probs, labels=model.classes_) < 0.75


def test_each_row_is_seen_by_a_classifier_that_was_not_fitted_to_it():
    X, y = BINARY
    splits = list(KFold(4, shuffle=True, random_state=1).split(X))
    model = Calibrated(LinearSVC(), method="temperature", cv=splits, ensemble=False).fit(X, y)
    margins = cross_val_predict(LinearSVC(), X, y, cv=splits, method="decision_function")
    alone = cb.TemperatureScaling().fit(np.stack([-margins / 2, margins / 2], axis=1), y)
    # The rows come fold by fold, so sums may differ in the last digits.
    assert model.calibrator_.temperature_ == pytest.approx(alone.temperature_, rel=1e-6)
    (single,) = model.estimators_
    np.testing.assert_allclose(single.coef_, LinearSVC().fit(X, y).coef_)
    together = Calibrated(LinearSVC(), method="temperature", cv=splits).fit(X, y)
    assert together.calibrator_.temperature_ == model.calibrator_.temperature_
    assert len(together.estimators_) == 4
    parts = [
        together.calibrator_.predict_proba(
            np.stack([-one.decision_function(X) / 2, one.decision_function(X) / 2], axis=1)
        )
        for one in together.estimators_
    ]
    np.testing.assert_allclose(together.predict_proba(X), together.pool_.mean(parts))
    np.testing.assert_allclose(together.predict_proba(X), np.mean(parts, axis=0), atol=0.03)
    assert model.pool_.factor == 1
    assert 1 < together.pool_.factor < 1.1  # linear margins hardly differ


def test_the_mean_of_noisy_classifiers_is_as_sure_as_it_deserves():
    """Log odds t + e with t ~ N(c, a^2), e ~ N(0, b^2): what a mean of m deserves is known."""
    rng, a, b, c, m = np.random.default_rng(0), 2.0, 1.5, -1.0, 5
    truth = c + rng.normal(scale=a, size=200_000)
    seen = truth + rng.normal(scale=b, size=(m, len(truth)))
    trust = a**2 / (a**2 + b**2)

    def probs(log_odds):
        return np.stack([1 / (1 + np.exp(log_odds)), 1 / (1 + np.exp(-log_odds))], axis=1)

    each = [probs(c + trust * (one - c)) for one in seen]
    pool = Pool.learn(each[0], each[1], m)
    assert pool.factor == pytest.approx((a**2 / (a**2 + b**2 / m)) / trust, rel=0.01)
    np.testing.assert_allclose(pool.centre, [-c / 2, c / 2], rtol=0.02)
    assert Pool.learn(each[0], each[1], 1).factor == pytest.approx(1)
    # Log odds move away from c, by that factor.
    moved = pool.mean([probs(np.array([c, c + 2]))])
    np.testing.assert_allclose(
        np.log(moved[:, 1] / moved[:, 0]), [c, c + 2 * pool.factor], atol=0.02
    )
    # Half of the rows weighed to nothing are half of the rows.
    half = np.arange(len(truth)) % 2
    halved = Pool.learn(each[0], each[1], m, half).factor
    assert halved == pytest.approx(Pool.learn(each[0][1::2], each[1][1::2], m).factor, rel=1e-9)


def test_a_probability_of_0_stays_one_in_a_mean():
    probs = np.array([[0.0, 0.7, 0.3]])
    pool = Pool(1.5, np.array([0.0, 0.1, -0.1]))
    found = pool.mean([probs, probs])
    assert found[0, 0] == 0
    assert found.sum() == pytest.approx(1)
    np.testing.assert_array_equal(Pool().mean([probs, probs]), probs)


def test_a_mean_of_trees_is_sharpened_and_predicts_better():
    X, y = make_classification(1500, 8, n_informative=5, n_classes=3, random_state=1)
    tree = DecisionTreeClassifier(min_samples_leaf=5, random_state=0)
    model = Calibrated(tree, method="svs").fit(X[:700], y[:700])
    assert model.pool_.factor > 1.2
    sharp = log_loss(y[700:], model.predict_proba(X[700:]))
    model.pool_ = Pool()
    assert sharp < log_loss(y[700:], model.predict_proba(X[700:])) - 0.02


def test_folds_that_share_no_rows_are_averaged_plainly():
    X, y = BINARY
    model = Calibrated(GaussianNB(), method="temperature", cv=2).fit(X, y)
    assert (len(model.estimators_), model.pool_.factor) == (2, 1)


def test_a_fitted_classifier_is_left_as_it_is():
    X, y = load_digits(return_X_y=True)
    network = GaussianNB().fit(X[:800], y[:800])
    before = network.theta_.copy()
    wanted = ("prefit", network), (5, FrozenEstimator(network))
    models = [Calibrated(e, cv=cv, method="temperature").fit(X[800:], y[800:]) for cv, e in wanted]
    for model in models:
        np.testing.assert_array_equal(network.theta_, before)
        assert len(model.estimators_) == 1
        assert brier(model, X, y) < brier(network, X, y)
    np.testing.assert_array_equal(models[0].predict_proba(X), models[1].predict_proba(X))


def brier(model, X, y):
    return brier_score_loss(y, model.predict_proba(X), labels=np.unique(y))


def test_a_class_that_the_calibration_rows_lack_keeps_its_column():
    X, y = load_digits(return_X_y=True)
    network = GaussianNB().fit(X[:800], y[:800])
    kept = (np.arange(len(y)) >= 800) & (y != 9)
    model = Calibrated(network, method="temperature", cv="prefit").fit(X[kept], y[kept])
    assert model.predict_proba(X).shape == (len(X), 10)
    with pytest.raises(InputError, match="y holds '10', which is none of the classes"):
        Calibrated(network, cv="prefit").fit(X[kept], y[kept] + 2)


def test_a_class_that_a_fold_lacks_is_its_least_likely():
    X, y = FLOWERS
    # Unshuffled, each third of the rows is one class.
    model = Calibrated(GaussianNB(), method="none", cv=KFold(3)).fit(X, y)
    scores = scores_of(model.estimators_[0], X, "predict_proba", model.classes_)
    assert (scores.values[:, 0] == 0).all()
    margins = scores_of(
        LogisticRegression().fit(X[50:], y[50:]), X, "decision_function", model.classes_
    )
    assert (margins.values[:, 0] < margins.values[:, 1:].min()).all()


def test_zeros_of_a_forest_count_as_half_of_its_smallest_step():
    X, y = BINARY
    forest = RandomForestClassifier(20, random_state=0).fit(X[:200], y[:200])
    scores = scores_of(forest, X[200:], "predict_proba", forest.classes_)
    assert floor_of(scores) == pytest.approx(0.5 / 20)
    assert scores.logits(floor_of(scores)).min() == pytest.approx(np.log(0.025))
    tiny = Scores(np.array([[1.0, 0.0], [1 - 1e-300, 1e-300]]), probabilities=True)
    assert np.isfinite(tiny.logits(floor_of(tiny))).all()
    model = Calibrated(forest, method="temperature", cv="prefit").fit(X[200:], y[200:])
    plain = cb.TemperatureScaling().fit(np.log(np.maximum(scores.values, 1e-38)), y[200:])
    before = plain.predict_proba(np.log(np.maximum(scores.values, 1e-38)))
    assert log_loss(y[200:], model.predict_proba(X[200:])) < log_loss(y[200:], before) - 0.05


def test_tables_and_sparse_matrices_reach_the_classifier_as_they_are():
    pandas = pytest.importorskip("pandas")
    X, y = FLOWERS
    table = pandas.DataFrame(X, columns=list("abcd"), index=range(100, 250))
    labels = pandas.Series(np.array(["x", "y", "z"])[y], index=table.index)
    model = Calibrated(GaussianNB(), method="temperature").fit(table, labels)
    assert model.feature_names_in_.tolist() == list("abcd")
    plain = Calibrated(GaussianNB(), method="temperature").fit(X, labels.to_numpy())
    np.testing.assert_array_equal(model.predict_proba(table), plain.predict_proba(X))
    thin = Calibrated(LogisticRegression(max_iter=500), method="temperature")
    found = clone(thin).fit(sparse.csr_array(X), y).predict_proba(sparse.csr_array(X))
    np.testing.assert_allclose(found, thin.fit(X, y).predict_proba(X), atol=1e-4)


def test_weights_reach_the_classifiers():
    X, y = BINARY
    weights = np.where(y == 1, 3.0, 1.0)
    plain, weighed = (
        Calibrated(LogisticRegression(), method="temperature").fit(X, y, sample_weight=w)
        for w in (None, weights)
    )
    assert weighed.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.02
    with pytest.raises(InputError, match="KNeighborsClassifier takes no sample_weight"):
        Calibrated(KNeighborsClassifier()).fit(X, y, sample_weight=weights)


def test_a_method_is_a_name_or_a_calibrator_and_can_be_searched_over():
    X, y = BINARY
    model = Calibrated(LinearSVC(), method=cb.posthoc.HistogramBinning(n_bins=5)).fit(X, y)
    assert model.calibrator_.n_bins == 5
    assert not hasattr(model.method, "fit_report_")
    assert len(np.unique(Calibrated(
        LinearSVC(), method=cb.posthoc.HistogramBinning(n_bins=5), ensemble=False
    ).fit(X, y).predict_proba(X)[:, 1])) <= 10  # fmt: skip
    search = GridSearchCV(
        Calibrated(GaussianNB(), cv=3),
        {"method": ["none", "temperature"], "estimator__var_smoothing": [1e-9, 1e-1]},
        scoring="neg_log_loss",
        cv=3,
    ).fit(X, y)
    assert search.best_params_["method"] in ("none", "temperature")


def test_the_default_chooses_its_method_by_likelihood():
    X, y = BINARY
    model = Calibrated(GaussianNB()).fit(X, y)
    assert model.calibrator_.method == "auto"
    assert log_loss(y, cross_val_predict(model, X, y, cv=2, method="predict_proba")) < log_loss(
        y, cross_val_predict(GaussianNB(), X, y, cv=2, method="predict_proba")
    )


class Mute(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict(self, X):
        return np.full(len(X), self.classes_[0])


class Odd(Mute):
    def __init__(self, answer=None):
        self.answer = answer

    def decision_function(self, X):
        return np.full((len(X), *np.shape(self.answer)), self.answer)


@pytest.mark.parametrize(
    ("model", "labels", "message"),
    [
        (Calibrated(Mute()), BINARY[1], "Mute has no decision_function or predict_proba"),
        (Calibrated(GaussianNB(), response="margin"), BINARY[1], "response must be one of auto"),
        (Calibrated(LinearSVC(), response="predict_proba"), BINARY[1], "LinearSVC has no predict_"),
        (Calibrated(GaussianNB(), cv=1), BINARY[1], "cv must be at least 2 folds or 'prefit'"),
        (Calibrated(GaussianNB(), ensemble="no"), BINARY[1], "ensemble must be True, False or"),
        (Calibrated(GaussianNB()), np.zeros(400, int), "y holds one class only, '0'"),
        (Calibrated(GaussianNB()), np.arange(400) // 399, "class '1' has a single row"),
        (Calibrated(GaussianNB(), method="nonsense"), BINARY[1], "no method is called 'nonsense'"),
        (Calibrated(Odd(np.nan)), BINARY[1], "Odd.decision_function gives NaN or infinity for row"),
        (Calibrated(Odd([1.0, 2, 3])), BINARY[1], r"gives shape \(80, 3\) for 2 classes"),
    ],
)
def test_what_can_not_be_calibrated_is_one_sentence(model, labels, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with pytest.raises(InputError, match=message):
            model.fit(BINARY[0], labels)


def test_fewer_folds_are_taken_where_a_class_has_fewer_rows():
    X, _ = BINARY
    rare = np.where(np.arange(400) < 397, 0, 1)
    model = Calibrated(GaussianNB(), method="temperature").fit(X, rare)
    assert len(model.estimators_) == 3


# --- the display


def test_the_display_shows_the_positive_class_as_scikit_learn_does():
    from sklearn.calibration import calibration_curve

    X, y = BINARY
    names = np.array(["dry", "wet"])[y]
    model = GaussianNB().fit(X, names)
    shown = ReliabilityDisplay.from_estimator(model, X, names, n_bins=5)
    true, predicted = calibration_curve(y, model.predict_proba(X)[:, 1], n_bins=5)
    points = shown.ax_.collections[-1].get_offsets()
    np.testing.assert_allclose(points, np.stack([predicted, true], axis=1))
    assert shown.ax_.get_xlabel() == "Probability of class wet"
    assert shown.ax_.get_legend().get_texts()[0].get_text() == "GaussianNB"
    other = ReliabilityDisplay.from_estimator(model, X, names, pos_label="dry", ax=shown.ax_)
    assert other.figure_ is shown.figure_
    assert other.rows.confidence[0] == pytest.approx(1 - shown.rows.confidence[-1])


@pytest.mark.parametrize("strategy", ["uniform", "quantile", "smooth"])
def test_more_classes_show_the_confidence_with_a_band(strategy):
    X, y = FLOWERS
    probs = GaussianNB().fit(X, y).predict_proba(X)
    shown = ReliabilityDisplay.from_predictions(y, probs, strategy=strategy, name="nb")
    assert shown.ax_.get_xlabel() == "Confidence"
    np.testing.assert_array_equal(shown.rows.confidence, np.sort(probs.max(axis=1)))
    assert shown.rows.correct.mean() == (probs.argmax(axis=1) == y).mean()
    assert len(shown.ax_.collections) >= 1  # intervals or band
    one = ReliabilityDisplay.from_predictions(y, probs, pos_label=2)
    np.testing.assert_array_equal(one.rows.confidence, np.sort(probs[:, 2]))


def test_columns_in_another_order_keep_their_labels():
    X, y = FLOWERS
    probs = GaussianNB().fit(X, y).predict_proba(X)
    turned = ReliabilityDisplay.from_predictions(y, probs[:, ::-1], classes=[2, 1, 0])
    straight = ReliabilityDisplay.from_predictions(y, probs)
    np.testing.assert_array_equal(turned.rows.correct, straight.rows.correct)


@pytest.mark.parametrize(
    ("y_true", "y_prob", "more", "message"),
    [
        ([0, 1, 2], [0.1, 0.2, 0.3], {}, "one probability a row is for two classes"),
        ([0, 1, 1], [0.1, 0.2], {}, "y_prob must be 3 probabilities"),
        ([0, 1], [0.1, 1.2], {}, "y_prob must be 2 probabilities"),
        ([0, 1], [[0.1, 0.9], [0.3, 0.6]], {}, "must sum to 1, but row 1 sums to 0.9"),
        ([0, 1, 2], [[0.1, 0.9]] * 3, {}, r"y_prob of shape \(3, 2\) doesn't fit 3 classes"),
        ([0, 1], [0.1, 0.2], {"pos_label": 7}, "pos_label 7 is none of the classes"),
        ([0, 5], [[0.1, 0.9]] * 2, {"classes": [0, 1]}, "y_true holds '5', which is none"),
        ([0, 1], [0.1, 0.2], {"strategy": "wide"}, "strategy must be 'uniform', 'quantile'"),
    ],
)
def test_what_can_not_be_drawn_is_one_sentence(y_true, y_prob, more, message):
    with pytest.raises((InputError, PredictionsError), match=message):
        ReliabilityDisplay.from_predictions(y_true, y_prob, **more)


def test_a_classifier_without_probabilities_is_sent_to_the_wrapper():
    X, y = BINARY
    with pytest.raises(InputError, match=r"LinearSVC has no predict_proba; wrap it in calibrant"):
        ReliabilityDisplay.from_estimator(LinearSVC().fit(X, y), X, y)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_calibrator_alone_takes_what_a_forest_gives_and_names_its_classes(classes, tmp_path):
    X, truth = make_classification(400, n_informative=4, n_classes=classes, random_state=0)
    y = np.array(["ok", "fraud", "odd"])[truth]
    forest = RandomForestClassifier(10, random_state=0).fit(X[:200], y[:200])
    model = Calibrated(forest, method="temperature", cv="prefit").fit(X[200:], y[200:])
    given = forest.predict_proba(X[200:])
    assert (given == 0).any()
    model.calibrator_.save(tmp_path / "c.safetensors")
    alone = cb.load(tmp_path / "c.safetensors")
    np.testing.assert_allclose(alone.predict_proba(given), model.predict_proba(X[200:]), rtol=1e-9)
    np.testing.assert_array_equal(alone.predict(given), model.predict(X[200:]))
    assert alone.class_names_ == tuple(model.classes_)
    as_frame = pytest.importorskip("pandas").DataFrame(given[:, ::-1], columns=model.classes_[::-1])
    with pytest.raises(cb.PredictionsError, match="in this order; give frame"):
        alone.predict_proba(as_frame)


def test_classes_that_are_numbers_from_0_have_no_names():
    X, y = load_iris(return_X_y=True)
    assert Calibrated(GaussianNB(), "temperature").fit(X, y).calibrator_.class_names_ is None
    tens = Calibrated(GaussianNB(), "temperature").fit(X, 10 * y).calibrator_
    assert tens.class_names_ == ("0", "10", "20")
