"""What a method declares: about itself to people and tests, and as hints to the engine."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Group = Literal["baseline", "Bayesian prior", "regularised", "split", "meta", "clustered", "mixture"]

Moment = Literal["after local training", "after aggregation"]
"""When the personal model is taken: it is in the client's state, or made from the newest message."""

Space = tuple[float, float] | list[Any]
"""What is tried of an option: numbers between two, on a logarithmic scale, or each of several values."""


class About(NamedTuple):
    """What a method declares about itself, for users and for the contract tests.

    Attributes:
        name: As on the command line.
        title: As in tables and charts.
        paper: Authors, title and venue.
        year: Of the paper.
        group: Under which heading the method is listed.
        personal: What each client keeps for itself, in words.
        moment: When the personal model is taken.
        private: Fields of the client's state that no uplink may contain; the contract tests search for them.
        needs_classes: Whether the method is not defined for a numeric target.
        uses_validation: Whether it uses the clients' validation examples, for calibration or mixing weights.
        class_means: Whether its uplink has means over the rows of each class, which give away a class of few rows.
        most_coefficients: Of a linear model, the largest number it can have: outputs · (inputs + 1).
    """

    name: str
    title: str
    paper: str
    year: int
    group: Group
    personal: str
    moment: Moment
    private: tuple[str, ...] = ()
    needs_classes: bool = False
    uses_validation: bool = False
    class_means: bool = False
    most_coefficients: int | None = None


class Hints(NamedTuple):
    """What the engine may rely on.

    Attributes:
        everyone_trains: Every client trains in every round, and a sample of them reports.
        personal_downlink: `broadcast` creates one message per client.
        fixed_state: A client's state never changes after it has joined.
        head_phase: There are phases that train only heads, on features computed once.
        plain_sgd: The method's identities need plain SGD: momentum, Adam and clipping are not used.
        own_training: `train` is not used at all.
    """

    everyone_trains: bool = False
    personal_downlink: bool = False
    fixed_state: bool = False
    head_phase: bool = False
    plain_sgd: bool = False
    own_training: bool = False
