"""Reading CIFAR's pickles without running them.

A pickle may name any function and have it called. Here `find_class` admits only the four names that a pickled array
of bytes needs, and replaces even those by inert stand-ins that record their arguments; the array is then built
from its bytes and shape. So the file cannot call any function of NumPy or of any other module.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedprior.errors import FedpriorError


class PickledArray:
    """Stands in for an array: keeps its bytes and shape."""

    def __init__(self, content: Any = None, dtype: Any = None, shape: Any = None, order: Any = "C") -> None:
        self.content, self.dtype, self.shape, self.order = content, dtype, shape, order

    def __setstate__(self, state: Any) -> None:
        _, self.shape, self.dtype, fortran, self.content = state
        self.order = "F" if fortran else "C"

    def array(self) -> NDArray[np.uint8]:
        """The array itself, if it is one of bytes."""
        if not isinstance(self.dtype, PickledType) or self.dtype.name not in ("u1", "|u1"):
            raise FedpriorError("it holds an array of something other than bytes: this is not a CIFAR file.")
        if not isinstance(self.content, bytes | bytearray):
            raise FedpriorError("it holds an array without its bytes: this is not a CIFAR file.")
        shape = tuple(int(n) for n in self.shape)
        return np.frombuffer(self.content, np.uint8).reshape(shape, order="F" if self.order == "F" else "C")


class PickledType:
    """Stands in for a `numpy.dtype`: keeps its name."""

    def __init__(self, name: Any = "", *_: Any) -> None:
        self.name = name.decode("latin1") if isinstance(name, bytes) else name

    def __setstate__(self, state: Any) -> None:
        pass  # byte order and alignment, which do not matter for bytes


def _reconstruct(*_: Any) -> PickledArray:
    return PickledArray()


def _encode(text: Any, codec: Any = "latin1") -> bytes:
    """How Python 3 writes bytes in protocol 2."""
    if not isinstance(text, str) or codec != "latin1":
        raise FedpriorError("it holds text where bytes are expected: this is not a CIFAR file.")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): PickledArray,
    ("numpy._core.numeric", "_frombuffer"): PickledArray,
    ("numpy", "ndarray"): PickledArray,
    ("numpy", "dtype"): PickledType,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ADMITTED:
            raise FedpriorError(
                f"it is a pickle that asks for '{module}.{name}', which is refused: it may be malicious."
            )
        return ADMITTED[module, name]


def read(content: bytes) -> Any:
    """What a pickle holds: containers, numbers, text, bytes and `PickledArray`s. Keys of Python 2 come as bytes."""
    try:
        return _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except FedpriorError:
        raise
    except Exception as error:  # a damaged pickle can raise anything
        raise FedpriorError(f"it is a damaged or truncated pickle ({error}): get it again.") from None
