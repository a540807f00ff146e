"""Corruptions: what each must do to an image, and that severities are in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("PIL")

from scipy.ndimage import gaussian_filter  # noqa: E402
from test_training_damaged_data import check_damage  # noqa: E402

from calibrant.core.errors import InputError, UnknownMethodError  # noqa: E402
from calibrant.training.data import ImageSet  # noqa: E402
from calibrant_studies.networks.images import CORRUPTIONS, corrupt, read_cifar_c  # noqa: E402

SEVERITIES = range(1, 6)
SMOOTHING = ("gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur")


def photographs(count: int = 24, side: int = 32) -> ImageSet:
    """Return smooth random colours, as unlike noise as photographs are."""
    noise = np.random.default_rng(0).normal(size=(count, side, side, 3))
    smooth = gaussian_filter(noise, (0, 2, 2, 0))
    scaled = 128 + 45 * smooth / smooth.std()
    return ImageSet.from_rows(scaled.clip(0, 255).astype(np.uint8), np.arange(count))


def values(images: ImageSet) -> np.ndarray:
    return images.images.numpy().transpose(0, 2, 3, 1) / 255


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_stronger_severities_move_images_further(name: str) -> None:
    images = photographs()
    moved = []
    for severity in SEVERITIES:
        changed = corrupt(images, name, severity, seed=1)
        assert changed.images.shape == images.images.shape
        assert changed.images.dtype == torch.uint8
        assert torch.equal(changed.labels, images.labels)
        moved.append(np.abs(values(changed) - values(images)).mean())
    assert moved[0] > 0
    if name == "saturate":  # the first three take colour away, the others add some
        moved = moved[:3]
    assert moved == sorted(moved)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_seed_decides(name: str) -> None:
    images = photographs(4)
    first, again, other = (corrupt(images, name, 5, seed) for seed in (0, 0, 1))
    assert torch.equal(first.images, again.images)
    random = "noise" in name or name in ("motion_blur", "fog", "elastic_transform")
    assert torch.equal(first.images, other.images) == (not random)


@pytest.mark.parametrize(
    "name", [*SMOOTHING, "pixelate", "contrast", "elastic_transform", "saturate"]
)
def test_a_grey_image_has_nothing_to_lose(name: str) -> None:
    flat = ImageSet(torch.full((2, 3, 16, 16), 100, dtype=torch.uint8), torch.zeros(2).long())
    for severity in SEVERITIES:
        assert (corrupt(flat, name, severity).images - 100 == 0).all()


@pytest.mark.parametrize("name", SMOOTHING)
def test_blurs_keep_the_mean_and_lose_detail(name: str) -> None:
    images = photographs()
    changed = values(corrupt(images, name, 5))
    before = values(images)
    assert abs(changed.mean() - before.mean()) < 0.01
    assert np.diff(changed, axis=1).std() < np.diff(before, axis=1).std()


def test_noise_has_the_stated_size() -> None:
    grey = ImageSet(torch.full((8, 3, 64, 64), 128, dtype=torch.uint8), torch.zeros(8).long())
    level = 128 / 255
    deviation = {
        "gaussian_noise": 0.10,
        "speckle_noise": 0.20 * level,
        "shot_noise": np.sqrt(level / 50),
    }
    for name, expected in deviation.items():
        changed = values(corrupt(grey, name, 5))
        assert changed.std() == pytest.approx(expected, rel=0.03)
    hit = values(corrupt(grey, "impulse_noise", 5))
    assert np.isin(hit, (0, level, 1)).all()
    assert np.mean(hit != level) == pytest.approx(0.07, abs=0.005)
    assert np.mean(hit[hit != level]) == pytest.approx(0.5, abs=0.03)


def test_gaussian_blur_against_scipy_image_by_image() -> None:
    images = photographs(3)
    changed = values(corrupt(images, "gaussian_blur", 5))
    for got, image in zip(changed, values(images), strict=True):
        for colour in range(3):
            wanted = gaussian_filter(image[..., colour], 1.0, mode="nearest")
            np.testing.assert_allclose(got[..., colour], wanted, atol=0.5 / 255 + 1e-9)


def test_brightness_raises_the_largest_colour_and_keeps_the_hue() -> None:
    image = torch.tensor([[100, 50, 0], [0, 0, 0]], dtype=torch.uint8)
    one = ImageSet(image.T.reshape(1, 3, 1, 2), torch.zeros(1).long())
    bright = corrupt(one, "brightness", 5).images[0, :, 0].T.tolist()
    assert bright[0] == [176, 88, 0]  # 100 + 0.3 * 255 = 176.5 rounds to even, its half 88.25
    assert bright[1] == [76, 76, 76]


def test_pixelate_averages_whole_cells_when_they_fit() -> None:
    images = photographs(2)
    changed = values(corrupt(images, "pixelate", 5))
    cells = values(images).reshape(2, 16, 2, 16, 2, 3).mean(axis=(2, 4))
    wanted = cells.repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_allclose(changed, wanted, atol=0.5 / 255 + 1e-9)


def test_unknown_names_and_severities_are_refused() -> None:
    with pytest.raises(UnknownMethodError, match="did you mean 'gaussian_blur'"):
        corrupt(photographs(1), "gausian_blur", 1)
    with pytest.raises(InputError, match="severity must be 1 to 5, not 0"):
        corrupt(photographs(1), "fog", 0)


# Images that others have corrupted


@pytest.mark.parametrize("labels", [np.arange(10) / 3, np.full(10, -2), np.full(10, np.nan)])
def test_labels_of_cifar_c_that_name_no_class_are_refused(
    tmp_path: Path, labels: np.ndarray
) -> None:
    np.save(tmp_path / "fog.npy", np.zeros((10, 4, 4, 3), np.uint8))
    np.save(tmp_path / "labels.npy", labels)
    with pytest.raises(InputError, match=r"labels\.npy: 'labels' must be whole numbers from 0"):
        read_cifar_c(tmp_path, "fog", 1)
    np.save(tmp_path / "labels.npy", np.arange(10.0) % 3)
    assert read_cifar_c(tmp_path, "fog", 1).labels.tolist() == [0, 1]


@pytest.mark.parametrize("scalar", ["fog", "labels"])
def test_arrays_of_cifar_c_without_dimensions_are_refused(tmp_path: Path, scalar: str) -> None:
    arrays = {"fog": np.zeros((10, 4, 4, 3), np.uint8), "labels": np.zeros(10, np.int64)}
    arrays[scalar] = np.array(3)
    for name, values in arrays.items():
        np.save(tmp_path / f"{name}.npy", values)
    with pytest.raises(InputError, match="are no five severities"):
        read_cifar_c(tmp_path, "fog", 1)
    with (tmp_path / f"{scalar}.npy").open("wb") as file:
        np.savez(file, a=np.zeros(10))
    with pytest.raises(InputError, match="holds an archive of arrays"):
        read_cifar_c(tmp_path, "fog", 1)


def test_images_that_are_no_bytes_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", np.zeros((10, 4, 4, 3)))
    np.save(tmp_path / "labels.npy", np.zeros(10, int))
    with pytest.raises(InputError, match=r"fog\.npy: images must be bytes .*not float64"):
        read_cifar_c(tmp_path, "fog", 1)


def test_whatever_is_damaged_ends_in_the_one_error_class(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (10, 4, 4, 3), dtype=np.uint8)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(10) % 2)
    check_damage(tmp_path, lambda place: read_cifar_c(place, "fog", 2), 4)


def test_cifar_c_gives_the_rows_of_one_severity(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (15, 32, 32, 3), dtype=np.uint8)
    np.save(tmp_path / "fog.npy", images)
    np.save(tmp_path / "labels.npy", np.arange(15) % 3)
    third = read_cifar_c(tmp_path, "fog", 3)
    np.testing.assert_array_equal(third.images.numpy().transpose(0, 2, 3, 1), images[6:9])
    assert third.labels.tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="no corruption 'snow'; there are: fog"):
        read_cifar_c(tmp_path, "snow", 1)
    with pytest.raises(InputError, match="severity must be 1 to 5, not 6"):
        read_cifar_c(tmp_path, "fog", 6)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "fog.npy", np.zeros((5, 32, 32, 3), np.uint8))
    with pytest.raises(InputError, match=r"can't read the arrays: .*labels"):
        read_cifar_c(tmp_path, "fog", 1)
