"""Scikit-learn estimators: a table with a column that names the site in, one model per site inside.

Rows are routed to their site's model by the column `site`; without it, all rows are one site's. What is held out of
`fit` chooses the round and the method (`validation`) and fills `score_table_` (`test`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, column_or_1d, validate_data

from fedprior.data.columns import text
from fedprior.data.federation import Federation
from fedprior.data.frames import from_frame
from fedprior.data.schema import by_name
from fedprior.engine import AnyMethod
from fedprior.errors import FedpriorError, shown, unknown
from fedprior.experiment import Comparison, Result, compare
from fedprior.experiment.repeated import usual
from fedprior.methods import build
from fedprior.names import on_screen
from fedprior.protocol import Method

ONLY = "all rows"
"""The site of a table without sites."""
LEAST = 3
"""Rows that `fit` needs."""


class InputError(FedpriorError, ValueError):
    """Bad input, in one sentence; a ValueError too, as scikit-learn's users expect."""


@contextmanager
def _value_errors() -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except FedpriorError as error:
        raise InputError(str(error)) from None


@contextmanager
def _checking(what: str) -> Iterator[None]:
    """What scikit-learn, pandas and NumPy say of bad input, in one sentence."""
    try:
        yield
    except FedpriorError:
        raise
    except UnicodeEncodeError:
        raise InputError(f"{what} has text that is not valid Unicode: correct or drop it.") from None
    except (TypeError, ValueError, ArithmeticError) as error:
        told = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")
        raise InputError(f"{what} cannot be used: {told}.") from None


class _Federated(BaseEstimator):  # type: ignore[misc]
    """What both estimators do."""

    _kind: Literal["classes", "number"]

    def __init__(
        self,
        method: str | AnyMethod = "auto",
        *,
        site: str | None = None,
        model: Any = None,
        rounds: int | None = None,
        validation: float = 0.1,
        test: float = 0.2,
        scaling: Literal["shared", "own"] = "shared",
        kinds: dict[str, str] | None = None,
        new_sites: Literal["refuse", "shared"] = "refuse",
        random_state: int | None = 0,
        workers: int | Literal["auto"] = 1,
    ) -> None:
        self.method, self.site, self.model, self.rounds = method, site, model, rounds
        self.validation, self.test, self.scaling, self.kinds = validation, test, scaling, kinds
        self.new_sites, self.random_state, self.workers = new_sites, random_state, workers

    def fit(self, X: Any, y: ArrayLike | None = None, *, target: str | None = None) -> Self:
        """Train one model per site.

        Args:
            X: A DataFrame with the site column and the inputs, or an array [n, inputs] of a single site.
            y: The target of every row, [n].
            target: Instead of `y`: the column of `X` to predict.

        Returns:
            The estimator itself.

        Raises:
            InputError: If neither `y` nor `target` is given, a column is missing, or rows are too few. It is a
                `FedpriorError` and a `ValueError`.
        """
        with _value_errors():
            self.target_ = target
            if target is not None:
                X, y = _without(X, y, target)
            if y is None:
                raise InputError(
                    "requires y to be passed, but the target y is None: give y, or target= the name of a column."
                )
            frame = self._table(X, fitting=True)
            with _checking("y"):
                values = self._labels(y)
                check_consistent_length(X, values)
            if len(values) < LEAST:
                raise InputError(f"{len(values)} samples are too few to train and test on: give at least {LEAST}.")
            data = self._federation(frame, values)
            found = compare(self._methods(data), data, model=self.model, baselines=False, **self._settings(data))
        self._keep(found)
        return self

    def _federation(self, frame: pd.DataFrame, values: NDArray[Any]) -> Federation:
        column = _free("target", frame)
        site = self.site if self.site is not None else _free("site", frame)
        table = frame.assign(**{column: values})
        if self.site is None:
            table[site] = ONLY
        return from_frame(
            table,
            site=site,
            target=column,
            scaling=self.scaling,
            kinds={**self._declared(frame), column: self._kind},  # type: ignore[dict-item]
            seed=self._seed,
            validation=self.validation,
            test=self.test,
        )

    def _declared(self, frame: pd.DataFrame) -> dict[str, str]:
        """What the user says of columns; an array's are numbers."""
        if not isinstance(self.kinds, dict | None):
            raise InputError(f"kinds = {shown(self.kinds)} is not valid: give a dictionary of columns and their kinds.")
        return (
            dict(self.kinds or {})
            if hasattr(self, "feature_names_in_")
            else dict.fromkeys(map(str, frame.columns), "number")
        )

    @property
    def _seed(self) -> int:
        seed = 0 if self.random_state is None else self.random_state
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"random_state = {shown(seed)} is not valid: give a whole number from 0 on.")
        return int(seed)

    def _methods(self, data: Federation) -> list[AnyMethod]:
        """The method that was asked for; with "auto", the usual few, of which validation chooses one."""
        if isinstance(self.method, Method):
            return [self.method]
        recommended = data.recipe.get("methods", {})
        if not isinstance(self.method, str):
            raise InputError(f"method = {shown(self.method)} is not valid: give a method, or the name of one.")
        names = usual(data) if self.method == "auto" else [self.method]
        return [build(name, recommended.get(name, {})) for name in names]

    def _settings(self, data: Federation) -> dict[str, Any]:
        own = {} if self.rounds is None else {"rounds": self.rounds}
        return {**data.recipe.get("settings", {}), **own, "seed": self._seed, "workers": self.workers}

    def _keep(self, found: Comparison) -> None:
        if found.best is None:
            raise InputError(
                "no method has a finite validation NLL: training diverged, or nothing was left to validate on; lower "
                "the learning rate of the method's `train`, or raise `validation`."
            )
        self.method_ = found.best
        self.comparison_, self.result_ = found, found[self.method_]
        self.sites_ = np.array(self.result_.federation.clients, dtype=object)
        self.score_table_ = found.table

    def _table(self, X: Any, *, fitting: bool) -> pd.DataFrame:
        """The given rows as a table; arrays get names for their columns."""
        frame = self._named(X, fitting=fitting)
        if self.site is not None and self.site not in list(frame):
            raise InputError(f"the table has no column {shown(self.site)}, which names the site: add it, or set site=.")
        return frame

    def _named(self, X: Any, *, fitting: bool) -> pd.DataFrame:
        if isinstance(X, pd.DataFrame):
            if not len(X) or not len(X.columns):
                raise InputError(f"Found array with {len(X)} sample(s) and {len(X.columns)} feature(s): give some.")
            with _checking("X"):
                frame = X.reset_index(drop=True).set_axis([str(name) for name in X.columns], axis=1)
            by_name(frame)  # which refuses two of one name
            some = any(isinstance(name, str) for name in X.columns)  # scikit-learn knows columns by all names or none
            validate_data(self, frame if some else X, reset=fitting, skip_check_array=True)
            return frame
        array = check_array(X, dtype="numeric", ensure_all_finite="allow-nan", estimator=self)
        validate_data(self, array, reset=fitting, skip_check_array=True)
        _refuse_infinite(array)
        return pd.DataFrame(array, columns=[f"x{k}" for k in range(array.shape[1])])

    def _distributions(self, X: Any) -> NDArray[np.float64]:
        """The predictive distribution of every row [n, P], by its site's model."""
        check_is_fitted(self, "result_")
        with _value_errors():
            known = (
                isinstance(X, pd.DataFrame) and self.target_ is not None and self.target_ in X
            )  # the table that it was trained on
            frame = self._table(X.drop(columns=self.target_) if known else X, fitting=False)
            given = [ONLY] * len(frame) if self.site is None else [text(v).strip() for v in frame[self.site]]
            names = np.array(given, dtype=object)  # which keeps a NUL at the end of a name
            found = np.empty((len(frame), self.result_.method.task.likelihood.parameters))
            for site in dict.fromkeys(names):
                rows = np.flatnonzero(names == site)
                found[rows] = self._of_site(str(site), frame.iloc[rows])
        return found

    def _of_site(self, site: str, rows: pd.DataFrame) -> NDArray[np.float32]:
        if site in self.result_.federation.clients:
            return self.result_.predict(site, rows)
        if self.new_sites not in ("refuse", "shared"):
            raise unknown("value", self.new_sites, ("refuse", "shared"), "new_sites")
        if self.new_sites == "refuse":
            raise InputError(
                f"there is no model for the site '{on_screen(site)}', which was not in fit: use new_sites='shared' for "
                "the shared model, or fedprior.join to make it one."
            )
        return shared_prediction(self.result_, rows)

    def _labels(self, y: ArrayLike) -> NDArray[Any]:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.required = True
        return tags


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """Classes, with one model per site.

    Args:
        method: A name as in `fedprior methods`, a method such as `FedMAP(sigma2=15)`, or "auto": the usual few are
            trained, and the one with the lowest validation NLL is kept.
        site: The column of the table that names the site; by default, all rows are those of one site.
        model: As in `fedprior.run`: a network, a name, or a section; by default softmax regression.
        rounds: Communication rounds; by default as many as the recipe for tables has.
        validation: Share of each site's rows that chooses the round and the method.
        test: Share of each site's rows that fills `score_table_`.
        scaling: "shared" scales inputs by sums over all sites, "own" at each site by its own rows.
        kinds: Kinds of columns that are guessed wrongly, such as `{"stage": "category"}`.
        new_sites: What `predict` does with rows of a site that was not in `fit`: "refuse", or use the "shared" model.
        random_state: The seed of splits, weights and batches.
        workers: Worker processes, or "auto"; results do not depend on it.

    After `fit`: `classes_`, `sites_`, `method_` (its name), `score_table_` (one row per method), and `result_` (the
    run, with `result_.clients`, `result_.model(site)` and `result_.prior`).

    Examples:
        >>> import fedprior, pandas as pd
        >>> table = pd.DataFrame({"site": ["a", "b"] * 30, "dose": [1.0, 2.0, 3.0, 4.0, 5.0] * 12})
        >>> table["ill"] = ["yes" if dose > 2.5 else "no" for dose in table["dose"]]
        >>> model = fedprior.FederatedClassifier("fedmap", site="site", rounds=5).fit(table, target="ill")
        >>> model.predict_proba(table.head(3)).shape, list(model.classes_)
        ((3, 2), ['no', 'yes'])
    """

    _kind = "classes"

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """The probability of every class, by the model of each row's site.

        Args:
            X: A table or an array with the inputs of `fit`, and with the site column if there was one.

        Returns:
            [n, classes], in the order of `classes_`.

        Raises:
            InputError: If a column is missing, or a site was not in `fit` and `new_sites` is "refuse".
        """
        return self._distributions(X)[:, self._order]

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of every row.

        Args:
            X: As in `predict_proba`.

        Returns:
            Classes [n], as they were given to `fit`.
        """
        found = self.predict_proba(X)
        return np.asarray(self.classes_[found.argmax(1)])

    def _labels(self, y: ArrayLike) -> NDArray[Any]:
        values = column_or_1d(y, warn=True)
        _refuse_missing(values)
        check_classification_targets(values)
        self.classes_ = np.unique(values)
        if len(self.classes_) < 2:
            raise InputError("Classifier can't train when only one class is present.")
        names = [text(value) for value in values]
        "".join(names).encode()  # raises where no file could hold them
        return np.array(names, dtype=object)

    def _keep(self, found: Comparison) -> None:
        super()._keep(found)
        levels = list(self.result_.federation.target.levels)  # type: ignore[attr-defined]
        self._order = [levels.index(text(value)) for value in self.classes_]


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A number, with one model per site; the arguments and results are those of `FederatedClassifier`.

    Examples:
        >>> import fedprior, pandas as pd
        >>> table = pd.DataFrame({"site": ["a", "b"] * 30, "dose": [1.0, 2.0, 3.0, 4.0, 5.0] * 12})
        >>> model = fedprior.FederatedRegressor("mixed", site="site").fit(table, table["dose"] * 2)
        >>> model.predict(table).shape
        (60,)
    """

    _kind = "number"

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The predicted number for every row, by the model of its site.

        Args:
            X: A table or an array with the inputs of `fit`, and with the site column if there was one.
            return_std: Whether to return the standard deviation of the prediction too.

        Returns:
            Means [n]; with `return_std`, means [n] and standard deviations [n].

        Raises:
            InputError: If a column is missing, or a site was not in `fit` and `new_sites` is "refuse".
        """
        found = self._distributions(X)
        return (found[:, 0], found[:, 1]) if return_std else found[:, 0]

    def _labels(self, y: ArrayLike) -> NDArray[Any]:
        values = column_or_1d(y, warn=True)
        _refuse_missing(values)
        if values.dtype.kind in "mM":
            raise InputError("y holds dates or durations: give numbers instead, such as days.")
        return np.asarray(values, dtype=np.float64)


def shared_prediction(result: Result, rows: pd.DataFrame) -> NDArray[np.float32]:
    """The shared model's predictive distributions, for a site that has no model of its own."""
    import torch

    prior = result.prior
    if prior.preparation.common is None:
        raise InputError("without shared scaling there is no shared model for a new site: use scaling='shared'.")
    x = torch.as_tensor(prior.preparation.common.encode(rows), dtype=prior.method.task.dtype)
    found = prior.method.predict_global(prior.server, x)
    if found is None:
        raise InputError(f"{prior.method.about.title} has no shared model: use another method, or fedprior.join.")
    return np.asarray(prior.method.task.likelihood.readable(found).float().numpy())


def _without(X: Any, y: Any, target: str) -> tuple[pd.DataFrame, Any]:
    """A table without its target, and the target."""
    if y is not None:
        raise InputError("the target was given twice: give y, or target= the name of a column.")
    if not isinstance(X, pd.DataFrame) or target not in X:
        raise InputError(f"there is no column '{on_screen(target)}' to predict: give a DataFrame that has it.")
    return X.drop(columns=target), X[target].to_numpy()


def _free(name: str, frame: pd.DataFrame) -> str:
    """A name that no column has."""
    while name in frame:
        name = f"_{name}"
    return name


def _refuse_missing(values: NDArray[Any]) -> None:
    if bool(pd.isna(values).any()):
        raise InputError("Input y contains NaN: drop the rows without a target.")
    if np.issubdtype(values.dtype, np.number) and not np.isfinite(values).all():
        raise InputError("Input y contains infinity: correct or drop these rows.")


def _refuse_infinite(array: NDArray[Any]) -> None:
    if np.issubdtype(array.dtype, np.number) and np.isinf(array).any():
        raise InputError("Input X contains infinity: correct or drop these rows.")
