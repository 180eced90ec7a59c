"""Corruptions against closed forms, plain loops, and the standard library's HSV."""

from __future__ import annotations

import colorsys
import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import correlate
from scipy.stats import poisson

from fedprior.data.corruption import CORRUPTIONS, PARAMETERS, SEVERITIES, corrupt, pixels, weather
from fedprior.errors import FedpriorError
from fedprior.rng import Key

KEY = Key.from_seed(0)
EVERY = pytest.mark.parametrize("name", CORRUPTIONS)
LEVELS = pytest.mark.parametrize("severity", range(1, SEVERITIES + 1))
DRAWN = {"motion_blur", "gaussian_noise", "shot_noise", "impulse_noise", "frost", "fog"}


def scenes(n: int, channels: int = 3, height: int = 32, width: int = 32) -> NDArray[np.uint8]:
    """Smooth waves, an edge and some grain: about as much detail as a photograph has."""
    rng = np.random.default_rng(5)
    row, column = np.mgrid[0:height, 0:width]
    wave = rng.uniform(0.05, 0.5, (n, channels, 2, 1, 1))
    x = 110 + 50 * np.sin(wave[:, :, 0] * row + wave[:, :, 1] * column)
    x += 50 * (column > rng.integers(2, width - 2, (n, 1, 1, 1))) + rng.normal(0, 5, x.shape)
    return np.asarray(x.clip(0, 255), np.uint8)


def flat(level: int, n: int = 1, channels: int = 3, size: int = 32) -> NDArray[np.uint8]:
    return np.full((n, channels, size, size), level, np.uint8)


def rng_of(name: str, i: int) -> np.random.Generator:
    return KEY.fold("corruption", name, i).numpy()


# What all have in common


def test_the_published_parameters() -> None:
    """shared/methods/fedmap-pfedfda-fedbps.md, section 2.6; the order is that of its section 2.4, point 18."""
    assert PARAMETERS == {
        "motion_blur": ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        "defocus_blur": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        "gaussian_noise": ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,)),
        "shot_noise": ((500,), (250,), (100,), (75,), (50,)),
        "impulse_noise": ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,)),
        "frost": ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        "fog": ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        "jpeg_compression": ((80,), (65,), (58,), (50,), (40,)),
        "brightness": ((0.05,), (0.1,), (0.15,), (0.2,), (0.3,)),
        "contrast": ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,)),
    }
    assert tuple(PARAMETERS) == CORRUPTIONS
    assert CORRUPTIONS[:3] == ("motion_blur", "defocus_blur", "gaussian_noise")
    assert CORRUPTIONS[3:7] == ("shot_noise", "impulse_noise", "frost", "fog")
    assert CORRUPTIONS[7:] == ("jpeg_compression", "brightness", "contrast")


@EVERY
@LEVELS
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 5, 27), (1, 27, 5), (1, 2, 2)])
def test_shape_type_and_purity(name: str, severity: int, shape: tuple[int, int, int]) -> None:
    x = np.random.default_rng(0).integers(0, 256, (3, *shape), dtype=np.uint8)
    before = x.copy()
    y = corrupt(x, name, severity, KEY)
    assert y.shape == x.shape
    assert y.dtype == np.uint8
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(corrupt(x, name, severity, KEY), y)
    column_major = np.asfortranarray(x)
    np.testing.assert_array_equal(corrupt(column_major, name, severity, KEY), y)


@EVERY
def test_no_images(name: str) -> None:
    assert corrupt(flat(0, n=0), name, 1, KEY).shape == (0, 3, 32, 32)


@EVERY
def test_the_key_matters_where_something_is_drawn(name: str) -> None:
    x = scenes(4)
    one, other = corrupt(x, name, 3, KEY), corrupt(x, name, 3, Key.from_seed(1))
    assert (one != other).any(axis=(1, 2, 3)).all() == (name in DRAWN)
    twins = corrupt(np.stack([x[0], x[0]]), name, 3, KEY)
    assert (twins[0] != twins[1]).any() == (name in DRAWN)


@EVERY
def test_what_else_is_in_the_stack_does_not_matter(name: str) -> None:
    """300 images, which is more than are worked on at a time: image 290 next to others, image 3 in a shorter stack."""
    x = scenes(300, 3, 8, 8)
    y = corrupt(x, name, 3, KEY)
    others = 255 - x
    others[290] = x[290]
    np.testing.assert_array_equal(corrupt(others, name, 3, KEY)[290], y[290])
    np.testing.assert_array_equal(corrupt(x[:4], name, 3, KEY)[3], y[3])


@EVERY
def test_distortion_grows_with_severity(name: str) -> None:
    """Mean squared distance to the original; (8, 2) blurs as (6, 2) does, for their trails end beyond 6 sigma.

    Frost darkens the image as it brightens the ice, and the distance does not grow (with the photographs neither):
    there it is the share of variance that the original does not explain.
    """
    x = scenes(60).astype(np.float64)
    distance = []
    for severity in range(1, SEVERITIES + 1):
        y = corrupt(x.astype(np.uint8), name, severity, KEY).astype(np.float64)
        if name == "frost":
            distance.append(
                1 - np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] ** 2 for a, b in zip(x, y, strict=True)])
            )
        else:
            distance.append(np.square(y - x).mean())
    growth = np.diff([0.0, *distance]) / distance
    if name == "motion_blur":
        assert growth[3] == pytest.approx(0, abs=0.01)
        growth = np.delete(growth, 3)
    assert (growth > 0.02).all(), distance


@pytest.mark.parametrize("name", ["motion_blur", "defocus_blur", "contrast"])
@LEVELS
def test_a_constant_image_stays(name: str, severity: int) -> None:
    for level in (0, 77, 255):
        np.testing.assert_array_equal(corrupt(flat(level), name, severity, KEY), flat(level))


def test_bad_input() -> None:
    x = flat(0)
    with pytest.raises(FedpriorError, match="unknown corruption 'gausian_noise': did you mean 'gaussian_noise'"):
        corrupt(x, "gausian_noise", 1, KEY)
    for severity in (0, 6, -1, 2.0, True):
        with pytest.raises(FedpriorError, match=rf"severity {severity} of corruption 'fog' .*: choose 1 to 5\.$"):
            corrupt(x, "fog", severity, KEY)  # type: ignore[arg-type]
    with pytest.raises(FedpriorError, match=r"must be uint8 with values 0 to 255, not float32\.$"):
        corrupt(x.astype(np.float32), "fog", 1, KEY)
    for shape in ((3, 32, 32), (1, 2, 32, 32), (1, 32, 32, 3), (1, 3, 1, 32)):
        with pytest.raises(FedpriorError, match=r"must be \[n, C, H, W\] with 1 or 3 channels .*, not \["):
            corrupt(np.zeros(shape, np.uint8), "fog", 1, KEY)


# Noise


@LEVELS
def test_gaussian_noise_has_its_standard_deviation(severity: int) -> None:
    """61,440 values: the standard error of a standard deviation is 0.3 % of it, that of the mean 0.4 %."""
    std = PARAMETERS["gaussian_noise"][severity - 1][0]
    z = (corrupt(flat(128, 20), "gaussian_noise", severity, KEY) / 255 - 128 / 255) / std
    assert z.std() == pytest.approx(1, abs=0.012)
    assert z.mean() == pytest.approx(0, abs=0.016)
    assert abs(np.corrcoef(z[:, 0].ravel(), z[:, 1].ravel())[0, 1]) < 0.03  # channels by themselves


@LEVELS
def test_shot_noise_counts_photons(severity: int) -> None:
    """k ~ Poisson(photons · x) becomes grey level 255 k / photons, at most 255: the moments from scipy's probabilities.

    Its variance is near x / photons; 250 photons fall just beside grey levels, and rounding them is biased by 0.4.
    """
    photons = PARAMETERS["shot_noise"][severity - 1][0]
    k = np.arange(4 * photons)
    grey = np.rint(np.minimum(255 * k / photons, 255))
    for level in (20, 102, 250):
        p = poisson.pmf(k, photons * level / 255)
        y = corrupt(flat(level, 40), "shot_noise", severity, KEY)
        assert y.mean() == pytest.approx(p @ grey, abs=0.2)
        assert y.var() == pytest.approx(p @ grey**2 - (p @ grey) ** 2, rel=0.03)
    assert (corrupt(flat(0), "shot_noise", severity, KEY) == 0).all()


@LEVELS
def test_impulse_noise_is_half_salt_half_pepper(severity: int) -> None:
    """122,880 values at amount p: counts of each are binomial, p / 2; five standard errors. The rest stays."""
    half = PARAMETERS["impulse_noise"][severity - 1][0] / 2
    y = corrupt(flat(100, 40), "impulse_noise", severity, KEY)
    error = 5 * math.sqrt(half * (1 - half) / y.size)
    assert np.mean(y == 0) == pytest.approx(half, abs=error)
    assert np.mean(y == 255) == pytest.approx(half, abs=error)
    assert set(np.unique(y)) == {0, 100, 255}


# Blur


def test_disks_by_hand() -> None:
    """Radius 1 covers 5 pixels, 1.5 covers 9 (the diagonal is 1.414 long); 0.5 only the centre, which leaves 3 × 3
    Gaussian weights: t = exp(-1 / (2 · 0.6²)) = 0.2494, centre (1 / (1 + 2 t))² = 0.4452, edge 0.1110, corner 0.0277.
    """
    one, wide, point = pixels.disk(1, 0.2), pixels.disk(1.5, 0.1), pixels.disk(0.5, 0.6)
    plus = np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]])
    np.testing.assert_allclose(one[1:4, 1:4], plus / 5, atol=5e-6)
    np.testing.assert_allclose(wide[1:4, 1:4], 1 / 9)
    np.testing.assert_allclose(point[2, 2:], [0.4452, 0.1110, 0], atol=5e-5)
    assert point[1, 1] == pytest.approx(0.0277, abs=5e-5)
    for radius, alias in PARAMETERS["defocus_blur"]:
        assert pixels.disk(radius, alias).sum() == pytest.approx(1, abs=1e-12)


@LEVELS
def test_defocus_is_a_correlation_with_mirrored_borders(severity: int) -> None:
    x = scenes(3, 3, 9, 12)
    kernel = pixels.disk(*PARAMETERS["defocus_blur"][severity - 1])
    expected = correlate(x.astype(np.float64), kernel[None, None], mode="mirror")
    np.testing.assert_allclose(corrupt(x, "defocus_blur", severity, KEY), expected, atol=0.501)


def test_trail_by_hand() -> None:
    """Sigma 1: weights 1, e^-0.5 = 0.6065, e^-2 = 0.1353, e^-4.5 = 0.0111, 0.0003 over their sum 1.7533."""
    trail = pixels.trail(6, 1)
    assert len(trail) == 13
    np.testing.assert_allclose(trail[:5], [0.5703, 0.3459, 0.0772, 0.0063, 0.0002], atol=5e-5)
    for radius, sigma in PARAMETERS["motion_blur"]:
        assert pixels.trail(radius, sigma).sum() == pytest.approx(1, abs=1e-12)


@LEVELS
def test_motion_blur_pixel_by_pixel(severity: int) -> None:
    """Walk from each pixel along the angle, whole steps, round half down, stay inside; average by exp(-step² / 2σ²)."""
    radius, sigma = PARAMETERS["motion_blur"][severity - 1]
    x = scenes(6, 1, 10, 14)
    expected = np.zeros(x.shape)
    angles = [math.radians(rng_of("motion_blur", i).uniform(-45, 45)) for i in range(len(x))]
    assert min(angles) < -0.2 < 0.2 < max(angles)
    for (i, _, row, column), _ in np.ndenumerate(x):
        total = 0.0
        for step in range(2 * int(radius) + 1):
            weight = math.exp(-(step**2) / (2 * sigma**2))
            r = min(max(row + math.ceil(step * math.sin(angles[i]) - 0.5), 0), 9)
            c = min(max(column + math.ceil(step * math.cos(angles[i]) - 0.5), 0), 13)
            expected[i, 0, row, column] += weight * x[i, 0, r, c]
            total += weight
        expected[i, 0, row, column] /= total
    np.testing.assert_allclose(corrupt(x, "motion_blur", severity, KEY), expected, atol=0.51)


# Tone


@LEVELS
def test_brightness_is_a_shift_of_value(severity: int) -> None:
    """The standard library's HSV; pixels include black, white and pure red."""
    shift = PARAMETERS["brightness"][severity - 1][0]
    x = np.random.default_rng(0).integers(0, 256, (1, 3, 12, 12), dtype=np.uint8)
    x[0, :, 0, 0], x[0, :, 0, 1], x[0, :, 0, 2] = 0, 255, (200, 0, 0)
    expected = np.empty(x.shape)
    for row, column in np.ndindex(12, 12):
        hue, saturation, value = colorsys.rgb_to_hsv(*(x[0, :, row, column] / 255))
        expected[0, :, row, column] = colorsys.hsv_to_rgb(hue, saturation, min(value + shift, 1))
    np.testing.assert_allclose(corrupt(x, "brightness", severity, KEY), 255 * expected, atol=0.501)


def test_brightness_of_grey_images_by_hand() -> None:
    """Severity 4 adds 0.2 · 255 = 51."""
    for level, expected in ((0, 51), (100, 151), (230, 255)):
        assert (corrupt(flat(level, channels=1), "brightness", 4, KEY) == expected).all()


@LEVELS
def test_contrast_shrinks_towards_the_mean_of_a_channel(severity: int) -> None:
    factor = PARAMETERS["contrast"][severity - 1][0]
    x = scenes(5).astype(np.float64)
    mean = x.mean((2, 3), keepdims=True)
    y = corrupt(x.astype(np.uint8), "contrast", severity, KEY)
    np.testing.assert_allclose(y, (x - mean) * factor + mean, atol=0.501)


def test_contrast_by_hand() -> None:
    """Half the pixels 0, half 200: mean 100; severity 2 halves the distances."""
    x = flat(0)
    x[..., 16:] = 200
    assert [*np.unique(corrupt(x, "contrast", 2, KEY))] == [50, 150]


# Weather


@pytest.mark.parametrize("decay", [3, 1.75, 0.9])
def test_plasma_point_by_point(decay: float) -> None:
    """Diamond-square in loops on a torus of 8 × 8. The noise is read in the order centres, right of corners, below
    corners of each level, and loses decay² a level.
    """
    rng = Key.from_seed(3)
    noise = iter(rng.numpy().random(63, dtype=np.float32) * 2 - 1)
    field, step, amplitude = np.zeros((8, 8)), 8, 1.0
    while step > 1:
        half = step // 2
        corners = [(r, c) for r in range(0, 8, step) for c in range(0, 8, step)]
        for dr, dc, diagonal in ((half, half, True), (0, half, False), (half, 0, False)):
            for r, c in ((r + dr, c + dc) for r, c in corners):
                if diagonal:
                    near = [(r - half, c - half), (r - half, c + half), (r + half, c - half), (r + half, c + half)]
                else:
                    near = [(r - half, c), (r + half, c), (r, c - half), (r, c + half)]
                field[r, c] = sum(field[a % 8, b % 8] for a, b in near) / 4 + amplitude * next(noise)
        step, amplitude = half, amplitude / decay**2
    np.testing.assert_allclose(weather.plasma([rng.numpy()], 7, 5, decay)[0], field, atol=1e-5)


@LEVELS
def test_fog_over_white_and_black(severity: int) -> None:
    """White has m = 1: (1 + a p) / (1 + a) with p from 0 to 1, so from 255 / (1 + a) to 255. Black stays: m = 0."""
    amount = PARAMETERS["fog"][severity - 1][0]
    y = corrupt(flat(255, 3), "fog", severity, KEY)
    assert (y.max((1, 2, 3)) == 255).all()
    np.testing.assert_allclose(y.min((1, 2, 3)), 255 / (1 + amount), atol=0.501)
    assert (y[:, 0] == y[:, 2]).all()  # grey
    assert (corrupt(flat(0), "fog", severity, KEY) == 0).all()


def test_fog_is_scaled_by_the_brightest_value_of_the_image() -> None:
    """m = 102 / 255 = 0.4 at one pixel of one channel, a = 1: all is divided by (0.4 + 1) / 0.4 = 3.5."""
    x = flat(51)
    x[0, 1, 4, 4] = 102
    field = weather.plasma([rng_of("fog", 0)], 32, 32, 2)[0]
    layer = (field - field.min()) / (field.max() - field.min())
    np.testing.assert_allclose(corrupt(x, "fog", 4, KEY)[0], (x[0] + 255 * layer) / 3.5, atol=0.501)


@LEVELS
def test_frost_is_a_weighted_sum(severity: int) -> None:
    """Over black it is ice · texture; over grey 40 it is image · 40 more. The same texture at all severities."""
    image, ice = PARAMETERS["frost"][severity - 1]
    black = corrupt(flat(0, 30), "frost", severity, KEY).astype(np.float64)
    mildest = corrupt(flat(0, 30), "frost", 1, KEY)
    np.testing.assert_allclose(black, mildest * (ice / 0.2), atol=0.501 * (1 + ice / 0.2))
    grey = corrupt(flat(40, 30), "frost", severity, KEY)
    np.testing.assert_allclose(grey - black, image * 40, atol=1.001)
    one = corrupt(flat(0, 30, channels=1), "frost", severity, KEY)
    np.testing.assert_allclose(one[:, 0], black.mean(1), atol=1.001)


def test_frost_has_the_measured_colours() -> None:
    """1,500 textures over black at 0.45: their mean is that of the five measured ones, and a texture's colour and
    its standard deviation within are one of them. Standard errors: colour below 51 / √1500 = 1.3.
    """
    texture = corrupt(flat(0, 1500), "frost", 5, KEY) / 0.45
    mean, std = texture.mean((2, 3)), texture.std((2, 3))  # [n, 3]
    np.testing.assert_allclose(mean.mean(0), [143.8, 165.2, 177.2], atol=4)
    miss = np.abs(std[:, None] - weather.FROST_WITHIN).max(2)  # [n, 5]; clipping and rounding cost little
    assert np.quantile(miss.min(1), 0.95) < 1
    kind = miss.argmin(1)
    share = np.bincount(kind, minlength=5) / 1500
    np.testing.assert_allclose(share, [0.2, 0.4, 0, 0.2, 0.2], atol=0.05)  # two photographs are the same
    for k in (0, 1, 3, 4):
        np.testing.assert_allclose(mean[kind == k].mean(0), weather.FROST_COLOUR[k], atol=3.5)
        np.testing.assert_allclose(mean[kind == k].std(0), weather.FROST_BETWEEN[k], rtol=0.15)


def test_frost_has_the_grain_of_the_photographs() -> None:
    """Correlations at distance 1, 2 and 4 were measured at 0.23 to 0.53, 0.16 to 0.47 and 0.10 to 0.38."""
    ice = corrupt(flat(0, 300, channels=1), "frost", 5, KEY)[:, 0].astype(np.float64)
    z = (ice - ice.mean((1, 2), keepdims=True)) / ice.std((1, 2), keepdims=True)
    found = [(z[:, lag:] * z[:, :-lag]).mean() for lag in (1, 2, 4)]
    np.testing.assert_allclose(found, [0.41, 0.23, 0.10], atol=0.03)


# JPEG


def test_flat_blocks_by_hand() -> None:
    """A flat block v has one coefficient, 8 (v - 128); step 16 makes that 2 · round(v / 2 - 64), halves outwards."""
    for level, expected in ((128, 128), (129, 130), (130, 130), (131, 132), (127, 126), (126, 126), (0, 0), (255, 255)):
        assert (corrupt(flat(level, channels=1, size=8), "jpeg_compression", 4, KEY) == expected).all()


def test_a_weak_wave_is_lost_and_a_strong_one_kept() -> None:
    """Horizontal frequency 4 is a cosine with signs + - - + + - - +, amplitude a, coefficient 8 a; its step is 24.

    a = 1 gives 8 and is lost; a = 2 gives 16, kept as 24, amplitude 3.
    """
    sign = np.array([1, -1, -1, 1, 1, -1, -1, 1])
    for amplitude, kept in ((1, 0), (2, 3)):
        x = np.broadcast_to(128 + amplitude * sign, (1, 1, 8, 8)).astype(np.uint8)
        y = corrupt(x, "jpeg_compression", 4, KEY)
        np.testing.assert_array_equal(y[0, 0], np.broadcast_to(128 + kept * sign, (8, 8)))


@LEVELS
def test_colourless_images_compress_as_grey_ones(severity: int) -> None:
    x = scenes(5, 1, 20, 27)
    grey = corrupt(x, "jpeg_compression", severity, KEY)
    np.testing.assert_array_equal(corrupt(x.repeat(3, 1), "jpeg_compression", severity, KEY), grey.repeat(3, 1))
