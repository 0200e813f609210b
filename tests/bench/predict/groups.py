"""The groups of operators, by name, without importing a library: for tuning, which reads measured
records only. tests/unit/test_bench_predict.py compares the names with the operators.

The model is tuned on all groups but FROZEN:
- "tuning", "held out" and "untouched" are the groups of earlier reports. Single results of all
  three have been looked at, so they now count as tuning groups.
- The operators added in November 2026 were drawn, before a model saw them, into TUNING_HALF and
  FROZEN. Nobody looks at single results of FROZEN while tuning: no report prints them without
  --final. An operator of it for which the model is changed moves to the tuning half, by name.
- Results of FROZEN were looked at once, on 2026-11-19 (BENCHMARKS.md, "Prediction"). A model that
  is tuned from then on needs a new frozen group.
"""

import numpy as np

SEED = 202611
FROZEN = "frozen 2026-11"
TUNING_HALF = "tuning 2026-11"
SMALL = 3  # shapes of a ladder that are learned before the others are forecast

TUNED = """
argsort boolean_selection covariance cumulative_sum fftn gaussian_filter gradient_magnitude
groupby_mean histogram instantaneous_phase matmul mean pad sort_values structure_tensor
transpose uniform_filter where
"""
HELD_OUT = """
astype concatenate einsum envelope fftconvolve laplacian median_filter merge moving_mean
pairwise_distances quantile rfft_round_trip sobel_magnitude sort svd tensordot unique zoom
"""
UNTOUCHED = """
broadcast_product describe difference label opening outer qr resample roll rolling_mean shift
spectrogram stack standardise
"""
# Of 2026-11, by module
NEW = {
    "tables": """
text_upper text_length text_contains text_split text_join text_categories value_counts
drop_duplicates text_sort group_by_name dummies pivot_table melt multi_index_sort interpolate
drop_missing rank bins exponential_mean table_quantiles
""",
    "learning": """
pca standard_scaler robust_scaler normalizer quantile_transformer polynomials splines one_hot
k_means least_squares logistic gaussian_mixture neighbours forest outliers boosted_trees
approximate_kernel hashed_words
""",
    "images": """
resize rotate canny denoise corners unsharp_mask equalize otsu local_threshold binary_pattern
oriented_gradients skeleton particles watershed felzenszwalb superpixels isosurface
""",
    "labelled": """
xr_rolling_mean xr_monthly_mean xr_anomalies xr_regrid xr_resample xr_coarsen xr_standard_score
xr_weighted_mean xr_quantile xr_to_table xr_difference xr_fill xr_gradient xr_cumulative
""",
    "windows": """
window_std window_patches window_median window_blocks window_mean window_variance savitzky_golay
padding upsample repeat xr_window lags embedding components spline_knots degree
""",
}
SIMULATIONS = """
random_walks monte_carlo_pi kernel_matrix cube game_of_life spectrum diffusion bootstrap
"""


def draw(libraries, seed=SEED):
    """The names of each library, half of them (rounded up and down in turn) for tuning, the others
    frozen: two sets."""
    chance, tuning, frozen = np.random.default_rng(seed), set(), set()
    for names in libraries:
        mixed = [str(name) for name in chance.permutation(sorted(names))]
        half = (len(mixed) + (len(tuning) <= len(frozen))) // 2
        tuning.update(mixed[:half])
        frozen.update(mixed[half:])
    return {TUNING_HALF: frozenset(tuning), FROZEN: frozenset(frozen)}


GROUPS = {
    "tuning": frozenset(TUNED.split()),
    "held out": frozenset(HELD_OUT.split()),
    "untouched": frozenset(UNTOUCHED.split()),
    **draw([names.split() for names in NEW.values()]),
}
SIMULATION_GROUPS = draw([SIMULATIONS.split()])
