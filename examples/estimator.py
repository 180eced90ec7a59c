"""One model per hospital as a scikit-learn estimator, on the table of examples/hospitals.py."""

from __future__ import annotations

from hospitals import hospitals

import fedprior

table, new = hospitals(seed=0), hospitals(seed=0).head(4)
model = fedprior.FederatedClassifier("fedmap", site="hospital", rounds=20).fit(table, target="outcome")
print(model.score_table_[["accuracy", "nll"]].round(3))
print(model.classes_, model.predict_proba(new.drop(columns="outcome")).round(2), sep="\n")
