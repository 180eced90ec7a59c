"""Data sets that are fetched or imported once, checked, and kept on the disk: `fetch`, `import_files`, `load`."""

from fedprior.data.store.layout import Manifest, Progress
from fedprior.data.store.records import RECORDS
from fedprior.data.store.store import Pool, Status, Stored, data_dir, fetch, import_files, listing, load, status

__all__ = [
    "RECORDS",
    "Manifest",
    "Pool",
    "Progress",
    "Status",
    "Stored",
    "data_dir",
    "fetch",
    "import_files",
    "listing",
    "load",
    "status",
]
