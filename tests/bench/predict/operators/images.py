"""Operators of scikit-image."""

import numpy as np
from scipy import ndimage
from skimage import (
    exposure,
    feature,
    filters,
    measure,
    morphology,
    restoration,
    segmentation,
    transform,
)

from tests.bench.predict.operators.operator import M, one


def picture(shape, chance):
    """Smooth patches with noise, from 0 to 1."""
    coarse = chance.random([max(2, length // 16) for length in shape], dtype=np.float32)
    zoom = [length / rough for length, rough in zip(shape, coarse.shape, strict=True)]
    smooth = ndimage.zoom(coarse, zoom, order=1)
    return [np.clip(smooth + 0.05 * chance.standard_normal(smooth.shape, dtype=np.float32), 0, 1)]


def colours(shape, chance):
    (red,) = picture(shape, chance)
    return [np.stack([red, red[::-1], 1 - red], axis=-1)]


def edges_and_markers(shape, chance):
    (image,) = picture(shape, chance)
    markers = np.zeros(image.shape, np.int32)
    markers[8::32, 8::32] = np.arange(1, markers[8::32, 8::32].size + 1).reshape(
        markers[8::32, 8::32].shape
    )
    return [filters.sobel(image), markers]


def denoise(x):
    return restoration.denoise_tv_chambolle(x, max_num_iter=8)


def particles(x):
    return measure.regionprops_table(measure.label(x > 0.6), properties=("area", "centroid"))


NEW = [
    *(
        one(name, function, axes=2, low=M // 4, high=high, make=make)
        for name, make, high, function in [
            ("resize", picture, 8 * M, lambda x: transform.rescale(x, 0.5, anti_aliasing=True)),
            ("rotate", picture, 4 * M, lambda x: transform.rotate(x, 30, resize=True)),
            ("canny", picture, 4 * M, lambda x: feature.canny(x, 2.0)),
            ("denoise", picture, 4 * M, denoise),
            ("corners", picture, 4 * M, feature.corner_harris),
            ("unsharp_mask", picture, 8 * M, filters.unsharp_mask),
            ("equalize", picture, 4 * M, exposure.equalize_adapthist),
            ("otsu", picture, 8 * M, lambda x: x > filters.threshold_otsu(x)),
            ("local_threshold", picture, 4 * M, lambda x: x > filters.threshold_local(x, 35)),
            ("binary_pattern", picture, 4 * M, lambda x: feature.local_binary_pattern(x, 8, 1)),
            ("oriented_gradients", picture, 2 * M, feature.hog),
            ("skeleton", picture, 4 * M, lambda x: morphology.skeletonize(x > 0.6)),
            ("particles", picture, 4 * M, particles),
            ("watershed", edges_and_markers, 2 * M, segmentation.watershed),
        ]
    ),
    one(
        "felzenszwalb",
        lambda x: segmentation.felzenszwalb(x, scale=100),
        axes=2,
        low=M // 10,
        high=M // 2,
        make=colours,
    ),
    one(
        "superpixels",
        lambda x: segmentation.slic(x, n_segments=200, max_num_iter=3),
        axes=2,
        low=M // 10,
        high=M,
        make=colours,
    ),
    one(
        "isosurface", lambda x: measure.marching_cubes(x, 0.5), low=M // 4, high=2 * M, make=picture
    ),
]
