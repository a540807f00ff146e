"""Second stages behind networks and loaders of one's own, of any form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.core.errors import InputError, TrainingWarning
from calibrant.training.second_stages import (
    SECOND_STAGES,
    HeadRetraining,
    ProgressiveLayerPeeling,
    TwoStageTraining,
    load_head,
    replace_head,
)

CLASSES = 3


class TwoHeads(nn.Module):
    """Answers with logits and something else, in one of several forms."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(5, 4)
        self.fc, self.rotation = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)
        self.form = form

    def forward(self, pixels: Tensor) -> Any:
        features = self.body(pixels).relu()
        return self.form(self.fc(features), self.rotation(2 * features))


def batches(form: type) -> list[Any]:
    inputs, labels = (
        torch.randn(24, 5, generator=torch.Generator().manual_seed(1)),
        torch.arange(24),
    )
    parts = zip(inputs.split(8), (labels % CLASSES).split(8), strict=True)
    return [(x, y) if form is tuple else {"pixels": x, "labels": y} for x, y in parts]


@pytest.mark.parametrize("form", [tuple, dict])
@pytest.mark.filterwarnings("ignore:kappa")
def test_a_loader_and_a_network_of_any_form_give_the_same_head(form):
    plain = HeadRetraining(epochs=2, seed=1)
    features = [TwoHeads(tuple).body(x).relu().detach() for x, _ in batches(tuple)]
    answers = {tuple: lambda *parts: parts, dict: lambda first, other: {"logits": first}}
    network = TwoHeads(answers[form])
    plain.fit_network(TwoHeads(lambda first, other: first), batches(tuple), layer="fc")
    stage = HeadRetraining(epochs=2, seed=1)
    stage.fit_network(network, batches(form), batches(form), layer="fc")
    assert stage.beside_temperature_ is not None  # of the network's own logits, by their name
    rows = torch.cat(features)
    np.testing.assert_allclose(stage.logits(rows), plain.logits(rows), rtol=1e-5, atol=1e-6)
    replace_head(network, stage.head_, layer="fc")
    assert network.fc is stage.head_
    with pytest.raises(InputError, match="features: have 3 columns, but the head takes 4"):
        stage.logits(rows[:, :3])


def test_where_another_layer_could_be_the_head_a_warning_says_so():
    network = TwoHeads(lambda first, other: first)
    with pytest.warns(TrainingWarning, match="fc, rotation; .* name the right one with layer="):
        replace_head(network, nn.Sequential(nn.Linear(4, CLASSES)))
    with pytest.raises(InputError, match="head takes 7 features, but layer 'fc' is given 4"):
        replace_head(network, nn.Linear(7, CLASSES), layer="fc")
    with pytest.raises(InputError, match=r"no linear layer 'fcc'; did you mean 'fc'\?"):
        replace_head(network, nn.Linear(4, CLASSES), layer="fcc")


def test_batches_that_no_head_could_learn_from_are_refused():
    rows = TensorDataset(torch.randn(9, 5), torch.arange(9) % CLASSES)
    network, stage = TwoHeads(lambda first, other: first), HeadRetraining(epochs=1)
    with pytest.raises(InputError, match=r"give a DataLoader of the data set \(TensorDataset\)"):
        stage.fit_network(network, cast(Any, rows), layer="fc")
    three = DataLoader(TensorDataset(*rows.tensors, torch.arange(9)), batch_size=3)
    with pytest.raises(InputError, match="not a list of 3"):
        stage.fit_network(network, three, layer="fc")
    with pytest.raises(InputError, match="its weights are float32, so let the data set give"):
        stage.fit_network(network, [(rows.tensors[0].double(), rows.tensors[1])], layer="fc")


@pytest.mark.parametrize("stage", [HeadRetraining(epochs=2), TwoStageTraining(epochs=2)])
def test_a_loader_that_runs_dry_is_refused_where_a_head_had_stayed_untrained(stage):
    network, rows = TwoHeads(lambda first, other: first), torch.randn(9, 5)
    batches = [(rows, torch.arange(9) % CLASSES)]
    with pytest.raises(InputError, match="gives its batches only once, as a generator does"):
        stage.fit_network(network, (batch for batch in batches), layer="fc")
    with pytest.raises(InputError, match="the validation loader gives no batches"):
        stage.fit_network(network, batches, [], layer="fc")
    stage.fit_network(network, batches, (batch for batch in batches), layer="fc")
    whole = nn.Sequential(nn.Linear(5, CLASSES))
    with pytest.raises(InputError, match="the loader is empty"):
        ProgressiveLayerPeeling(epochs=2).train(whole, (batch for batch in batches))


def test_a_head_whose_arguments_are_numpys_numbers_can_be_saved(tmp_path):
    features, labels = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % CLASSES
    stage = HeadRetraining(epochs=np.int64(1), learning_rate=np.float32(0.5), seed=np.uint8(1))
    stage.fit(features, labels).save(tmp_path / "head.safetensors")
    logits = load_head(tmp_path / "head.safetensors")(torch.tensor(features))
    np.testing.assert_array_equal(logits.detach().numpy(), stage.logits(features))


def test_the_list_in_the_guide_is_what_the_methods_say_of_themselves():
    guide = (Path(__file__).parent.parent / "docs/appendix/second-stages.md").read_text(
        encoding="utf-8"
    )
    for name, kind in SECOND_STAGES.items():
        assert kind.words
        assert f"\n| `{name}` | {kind.words} |\n" in guide
