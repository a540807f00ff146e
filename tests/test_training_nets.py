"""The networks: their published sizes, and what methods of training ask of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from calibrant.core.errors import InputError, UnknownMethodError  # noqa: E402
from calibrant.training.nets import (  # noqa: E402
    GROWTH,
    NETS,
    DenseLayer,
    initialise_by_outputs,
    make_network,
)

# Counted in the reference code; resnet20 by hand, below.
PUBLISHED = [
    ("resnet50", 10, 23_520_842, 2048),
    ("resnet50", 100, 23_705_252, 2048),
    ("resnet101", 10, 42_512_970, 2048),
    ("resnet101", 100, 42_697_380, 2048),
    ("resnet110", 10, 45_864_522, 2048),
    ("resnet110", 100, 46_048_932, 2048),
    ("wrn-26-10", 10, 36_481_434, 640),
    ("wrn-26-10", 100, 36_539_124, 640),
    ("densenet121", 10, 6_956_298, 1024),
    ("densenet121", 100, 7_048_548, 1024),
    ("resnet50-tiny", 200, 25_138_952, 8192),
    ("resnet101-tiny", 200, 44_131_080, 8192),
]


def on_meta(name: str, classes: int) -> nn.Module:
    """Return a network without memory, which still knows its shapes."""
    with torch.device("meta"):
        return make_network(name, classes)


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(("name", "classes", "count", "width"), PUBLISHED)
def test_published_sizes(name: str, classes: int, count: int, width: int) -> None:
    network = on_meta(name, classes)
    assert parameters(network) == count
    side = 64 if name.endswith("tiny") else 32
    logits, features = network(torch.empty(2, 3, side, side, device="meta"), return_features=True)
    assert logits.shape == (2, classes)
    assert features.shape == (2, width)
    assert network.feature_width == width


def basic_stage(inputs: int, width: int, blocks: int, shortcut: bool) -> int:
    """Count the parameters of a stage; the norm of each convolution has two a channel."""
    first = 9 * inputs * width + 9 * width * width + 4 * width
    others = (blocks - 1) * (18 * width * width + 4 * width)
    return first + others + (inputs * width + 2 * width if shortcut else 0)


def test_sizes_of_the_small_networks_by_hand() -> None:
    resnet20 = 27 * 16 + 32 + basic_stage(16, 16, 3, shortcut=False)
    resnet20 += basic_stage(16, 32, 3, shortcut=True) + basic_stage(32, 64, 3, shortcut=True)
    assert parameters(on_meta("resnet20", 10)) == resnet20 + 650 == 272_474
    resnet8 = 27 * 24 + 48 + basic_stage(24, 48, 1, shortcut=True)
    resnet8 += basic_stage(48, 96, 1, shortcut=True) + basic_stage(96, 192, 1, shortcut=True)
    assert parameters(on_meta("resnet8", 10)) == resnet8 + 1930 == 682_018


@pytest.mark.parametrize("name", NETS)
def test_stages_in_turn_are_the_network(name: str) -> None:
    network = on_meta(name, 7)
    side = 64 if name.endswith("tiny") else 32
    images = torch.empty(2, 3, side, side, device="meta")
    through = images
    for stage in network.stages:
        through = stage(through)
    assert through.shape == network(images).shape
    counted = [parameter for stage in network.stages for parameter in stage.parameters()]
    assert len(counted) == len(list(network.parameters()))


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "densenet121"])
def test_stages_and_features_give_the_logits(name: str) -> None:
    torch.manual_seed(0)
    network = make_network(name, 4).eval()
    images = torch.randn(3, 3, 32, 32)
    logits, features = network(images, return_features=True)
    assert not features.requires_grad
    assert network.features(images).requires_grad
    torch.testing.assert_close(network.fc(features), logits)
    through = images
    for stage in network.stages:
        through = stage(through)
    torch.testing.assert_close(through, logits)
    # After ReLU and pooling, so that the L1 norm is the sum.
    assert (features >= 0).all()


def test_the_wide_network_has_28_convolutions_and_strides_in_the_first_of_a_stage() -> None:
    convolutions = [
        module for module in on_meta("wrn-26-10", 10).modules() if isinstance(module, nn.Conv2d)
    ]
    assert len(convolutions) == 28
    assert sum(module.stride == (2, 2) for module in convolutions) == 4  # two and their shortcuts
    assert all(module.bias is None for module in convolutions)


def test_a_bottleneck_strides_in_its_3x3_convolution() -> None:
    strided = [
        module.kernel_size
        for name, module in on_meta("resnet50", 10).named_modules()
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2) and "branch" in name
    ]
    assert strided == [(3, 3)] * 3


def test_a_dense_layer_puts_the_new_channels_first() -> None:
    layer = DenseLayer(5).eval()
    images = torch.randn(2, 5, 4, 4)
    out = layer(images)
    torch.testing.assert_close(out[:, GROWTH:], images)
    torch.testing.assert_close(out[:, :GROWTH], layer.branch(images))


def test_initialisation_by_outputs() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(64, 200, 3, bias=False))
    initialise_by_outputs(network)
    assert network[0].weight.std().item() == pytest.approx(math.sqrt(2 / (9 * 200)), rel=0.02)


def test_unknown_names_and_one_class_are_refused() -> None:
    with pytest.raises(UnknownMethodError, match="did you mean 'resnet50'"):
        make_network("resnet-50", 10)
    with pytest.raises(InputError, match="at least 2 classes, not 1"):
        make_network("resnet8", 1)


@pytest.mark.parametrize("name", NETS)
def test_the_list_in_the_guide_is_what_a_network_says_of_itself(name: str) -> None:
    guide = (Path(__file__).parent.parent / "docs/appendix/training.md").read_text(encoding="utf-8")
    network = on_meta(name, 10)
    cells = (f"`{name}`", NETS[name].note, network.feature_width, f"{parameters(network):,}")
    assert f"\n| {' | '.join(map(str, cells))} |\n" in guide
