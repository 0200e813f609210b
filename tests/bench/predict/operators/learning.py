"""Operators of scikit-learn: transforms, and fits of small models."""

import numpy as np
from sklearn import cluster, decomposition, ensemble, linear_model, mixture, neighbors
from sklearn import kernel_approximation as kernels
from sklearn import preprocessing as prepare
from sklearn.feature_extraction.text import HashingVectorizer

from tests.bench.predict.operators.operator import one, row_ladder

SAMPLES = row_ladder(16_000, 300_000, lambda i: 8 + i * 7 % 9)
FEW_SAMPLES = row_ladder(16_000, 120_000, lambda i: 8 + i * 5 % 5)
TEXTS = row_ladder(6_000, 80_000, lambda i: 1)


def samples(shape, chance):
    """Rows × columns of float64, with a few clusters."""
    centres = chance.normal(0, 3, (5, shape[1]))
    return [centres[chance.integers(0, 5, shape[0])] + chance.normal(0, 1, shape)]


def samples_and_classes(shape, chance):
    (x,) = samples(shape, chance)
    return [x, (x[:, 0] + chance.normal(0, 1, shape[0]) > 0).astype(np.int64)]


def samples_and_targets(shape, chance):
    (x,) = samples(shape, chance)
    return [x, x @ chance.random(shape[1]) + chance.normal(0, 1, shape[0])]


def codes(shape, chance):
    return [chance.integers(0, 60, shape)]


def texts(shape, chance):
    """Sentences of twenty words, as an array of objects."""
    words = np.array([f"w{n}" for n in range(3000)], dtype=object)
    drawn = words[chance.integers(0, 3000, (shape[0], 20))]
    return [np.array([" ".join(row) for row in drawn], dtype=object)]


def hashed_words(x):
    return HashingVectorizer(n_features=2**16).fit_transform(x)


def neighbours(x):
    return neighbors.NearestNeighbors(n_neighbors=5, n_jobs=1).fit(x[:2000]).kneighbors(x)


def k_means(x):
    return cluster.KMeans(8, n_init=1, max_iter=8, random_state=0).fit_predict(x)


def forest(x, y):
    return ensemble.RandomForestClassifier(5, max_depth=6, random_state=0).fit(x, y).predict(x)


def outliers(x):
    return ensemble.IsolationForest(n_estimators=20, random_state=0).fit_predict(x)


def boosting(x, y):
    return ensemble.HistGradientBoostingRegressor(max_iter=10, random_state=0).fit(x, y).predict(x)


def mixtures(x):
    return mixture.GaussianMixture(4, max_iter=5, random_state=0).fit(x).predict_proba(x)


def quantiles(x):
    return prepare.QuantileTransformer(n_quantiles=200).fit_transform(x)


def approximate_kernel(x):
    return kernels.Nystroem(n_components=50, random_state=0).fit_transform(x)


NEW = [
    *(
        one(name, function, shapes=SAMPLES, make=make, grows=(0,))
        for name, make, function in [
            ("pca", samples, lambda x: decomposition.PCA(4).fit_transform(x)),
            ("standard_scaler", samples, lambda x: prepare.StandardScaler().fit_transform(x)),
            ("robust_scaler", samples, lambda x: prepare.RobustScaler().fit_transform(x)),
            ("normalizer", samples, lambda x: prepare.Normalizer().fit_transform(x)),
            ("quantile_transformer", samples, quantiles),
            ("polynomials", samples, lambda x: prepare.PolynomialFeatures(2).fit_transform(x)),
            ("splines", samples, lambda x: prepare.SplineTransformer(6).fit_transform(x)),
            ("one_hot", codes, lambda x: prepare.OneHotEncoder().fit_transform(x)),
            ("k_means", samples, k_means),
            (
                "least_squares",
                samples_and_targets,
                lambda x, y: linear_model.LinearRegression().fit(x, y).predict(x),
            ),
            (
                "logistic",
                samples_and_classes,
                lambda x, y: (
                    linear_model.LogisticRegression(max_iter=15, tol=1).fit(x, y).score(x, y)
                ),
            ),
            ("gaussian_mixture", samples, mixtures),
        ]
    ),
    *(
        one(name, function, shapes=FEW_SAMPLES, make=make, grows=(0,))
        for name, make, function in [
            ("neighbours", samples, neighbours),
            ("forest", samples_and_classes, forest),
            ("outliers", samples, outliers),
            ("boosted_trees", samples_and_targets, boosting),
            ("approximate_kernel", samples, approximate_kernel),
        ]
    ),
    one("hashed_words", hashed_words, shapes=TEXTS, make=texts, grows=(0,)),
]
