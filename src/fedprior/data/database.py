"""Tables in a database, by SQLAlchemy."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Any

import pandas as pd

from fedprior.errors import FedpriorError, readable

QUERY = re.compile(r"\s*(select|with)\s", re.IGNORECASE)
SECRET = re.compile(r"password|passwd|pwd|secret|token", re.IGNORECASE)
READ_ONLY = {
    "sqlite": "PRAGMA query_only = ON",
    "postgresql": "SET TRANSACTION READ ONLY",
    "oracle": "SET TRANSACTION READ ONLY",
    "mysql": "START TRANSACTION READ ONLY",
    "mariadb": "START TRANSACTION READ ONLY",
}
"""What keeps a statement that begins like a query, `WITH … DELETE`, from changing anything; others are rolled back."""


def from_database(url: str, sql: str | None = None) -> pd.DataFrame:
    """The table `sql` of a database, or the rows of the SELECT statement `sql`; by default its only table."""
    if find_spec("sqlalchemy") is None:
        raise FedpriorError("reading a database needs the package sqlalchemy: pip install 'fedprior[sql]'.")
    with readable("the database cannot be read", 200):  # drivers have errors of their own
        return _rows(url, sql)


def _rows(url: str, sql: str | None) -> pd.DataFrame:
    from sqlalchemy import create_engine, make_url, text

    given = make_url(url)
    if given.password is not None or any(SECRET.search(f"{key}={value}") for key, value in given.query.items()):
        raise FedpriorError(
            "the URL of the database has a password, which would be written into the run's folder: leave it out and "
            "use your database's password file or environment variable, such as PGPASSFILE."
        )
    if given.get_backend_name() == "sqlite" and given.database:
        _check_file(given.database)
    engine = create_engine(given)
    try:
        with engine.connect() as connection:
            if (guard := READ_ONLY.get(given.get_backend_name())) is not None:
                connection.execute(text(guard))
            statement = sql if sql is not None and QUERY.match(sql) else _all_of(connection, sql)
            frame = pd.read_sql_query(text(statement), connection)
    finally:
        engine.dispose()
    if frame.empty:
        raise FedpriorError("the query gives no rows: check the table or the statement.")
    return frame


def _check_file(database: str) -> None:
    """SQLite would make an empty database of a path that does not exist."""
    from pathlib import Path

    if not Path(database).is_file():
        raise FedpriorError(f"there is no file '{database}': give the path of an SQLite database.")


def _all_of(connection: Any, table: str | None) -> str:
    from sqlalchemy import inspect

    names = inspect(connection).get_table_names()
    if table is None and len(names) != 1:
        told = ", ".join(names) or "none"
        raise FedpriorError(f"the database has {len(names)} tables ({told}): name one with data.sql=TABLE.")
    chosen = names[0] if table is None else table
    if chosen not in names:
        raise FedpriorError(f"the database has no table '{chosen}': its tables are {', '.join(names) or 'none'}.")
    return f"SELECT * FROM {connection.dialect.identifier_preparer.quote(chosen)}"
