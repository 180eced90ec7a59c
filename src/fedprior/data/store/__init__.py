"""Data sets that are fetched or imported once, checked, and kept on the disk: `fetch`, `import_files`, `load`."""

from fedprior.data.store.cache import Pool, Status, Stored, data_dir, fetch, import_files, listing, load, status
from fedprior.data.store.layout import Progress, StoredManifest
from fedprior.data.store.record import RECORDS

__all__ = [
    "RECORDS",
    "Pool",
    "Progress",
    "Status",
    "Stored",
    "StoredManifest",
    "data_dir",
    "fetch",
    "import_files",
    "listing",
    "load",
    "status",
]
