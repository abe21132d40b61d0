"""New rows written into a cache, as the program says it: an update of a tensor, which the compiler does in the caller's buffer.

`flow.tensor.update` along the first dim is one copy of the new rows (no allocation, no copy of the cache), as long as nothing reads
the old cache afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnx_fa.graph.site_op import DOMAIN

NAME = f"{DOMAIN}_append_rows"


def function_name(dims: Sequence[int | None], element: str) -> str:
    """The name of the function for caches of these dims behind the rows."""
    return "_".join([NAME, *("n" if d is None else str(d) for d in dims), element])


def rows_type(dims: Sequence[int | None], element: str) -> str:
    """The builtin type of rows of these dims."""
    return "tensor<" + "".join(f"{'?' if d is None else d}x" for d in (None, *dims)) + f"{element}>"


def declare(text: str) -> str:
    """A function without its body and the names of its arguments; "" for another text."""
    if not text.startswith("util.func "):
        return ""
    return re.sub(r"%\w+: ", "", text.partition(" {\n")[0])


def append_rows_text(dims: Sequence[int | None], element: str) -> str:
    """A function (cache: (T, *dims), new: (S, *dims)) -> the cache whose last S rows are the new ones. `element` is MLIR's name of
    the element type; a dim that is None is free."""
    type_ = rows_type(dims, element)
    free = [0, *(i + 1 for i, d in enumerate(dims) if d is None)]
    lines = [f"%i{i} = arith.constant {i} : index" for i in free]
    lines += [f"%c{i} = tensor.dim %cache, %i{i} : {type_}" for i in free]
    lines += [f"%n{i} = tensor.dim %new, %i{i} : {type_}" for i in free]
    lines.append("%first = arith.subi %c0, %n0 : index")
    starts = ", ".join(["%first", *["%i0"] * len(dims)])
    cache_dims, new_dims = (", ".join(f"%{letter}{i}" for i in free) for letter in "cn")
    lines.append(
        f"%made = flow.tensor.update %new, %cache[{starts}] : {type_}{{{new_dims}}} -> %cache as {type_}{{{cache_dims}}}"
    )
    lines.append(f"util.return %made : {type_}")
    body = "\n".join(f"  {line}" for line in lines)
    name = function_name(dims, element)
    return f"util.func private @{name}(%cache: {type_}, %new: {type_}) -> {type_} {{\n{body}\n}}\n"
