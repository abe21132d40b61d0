"""What an invocation reads and writes: rows of Q, K and V, elements of the masks, its row of the output."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.mlir.entry import tied_dims
from onnx_fa.kernels.mlir.operand import Operand
from onnx_fa.kernels.mlir.text import element_type, tensor_type
from onnx_fa.kernels.mlir.vectors import Scalars
from onnx_fa.spec.attention import AttentionSpec


def operands_of(spec: AttentionSpec) -> list[Operand]:
    """The operands in the spec's order; booleans are bytes."""
    elements = ["i8" if d == "bool" else element_type(d) for d in spec.operand_dtypes]
    names = [f"%{name}" for name in spec.operand_names("mask")]
    return [Operand(*x) for x in zip(names, spec.operand_shapes, elements, strict=True)]


class Access:
    """Reads and writes of one invocation, written into `t`. `dims` names the SSA value of each symbol; `lead` are the indices of
    the batch dims and of the head of Q, `kv_head` is that of K and V."""

    def __init__(self, t: Scalars, spec: AttentionSpec, dims: dict[str, str]) -> None:
        self.t, self.spec, self.dims = t, spec, dims
        self.operands = operands_of(spec)
        self.q, self.k, self.v, *rest = self.operands
        self.masks = rest[: len(spec.tensors)]
        self.sink = rest[-1] if spec.sink is not None else None
        self.out = Operand("%out", spec.out_shape, spec.dtype)
        self.lead: list[str] = []
        self.kv_head = ""

    def load_whole(self) -> list[str]:
        """The operations that make tensors of the dispatch's arguments."""
        lines = []
        for x in (*self.operands, self.out):
            access, tied = "writeonly" if x is self.out else "readonly", tied_dims(x.shape, self.dims)
            source = f"{x.name}_arg"
            if tied:
                source = f"{x.name}_tied"
                lines.append(f"{source} = flow.dispatch.tie_shape {x.name}_arg : {x.bound(access)}{tied}")
            if x is not self.out:
                sizes = [str(d) if isinstance(d, int) else self.dims[d] for d in x.shape]
                place = self._place(["0"] * len(sizes), sizes)
                lines.append(
                    f"{x.name} = iree_tensor_ext.dispatch.tensor.load {source}, {place} : {x.bound(access)}{tied} -> {x.type}"
                )
        return lines

    @staticmethod
    def _place(offsets: Sequence[str], sizes: Sequence[str]) -> str:
        ones = ", ".join("1" for _ in sizes)
        return f"offsets = [{', '.join(offsets)}], sizes = [{', '.join(sizes)}], strides = [{ones}]"

    def head_dims(self, x: Operand, layout: tuple[int, ...], row: str, first: int, width: int) -> str:
        """Numbers of a row of Q, K or V from a head dim on, as a vector of f32."""
        t, head = self.t, self.lead[-1] if x is self.q else self.kv_head
        canonical = [*self.lead[:-1], head, row, t.index(first)]
        at = ", ".join(canonical[axis] for axis in layout)
        type_ = f"vector<{width}x{x.element}>"
        if layout[-1] == self.spec.rank - 1:
            zero = t.constant("0.0", x.element)
            value = t.let(f"vector.transfer_read {x.name}[{at}], {zero} {{in_bounds = [true]}} : {x.type}, {type_}")
        else:
            scalar = t.let(f"tensor.extract {x.name}[{at}] : {x.type}")
            value = t.let(f"vector.broadcast {scalar} : {x.element} to {type_}")
        return value if x.element == "f32" else t.let(f"arith.extf {value} : {type_} to vector<{width}xf32>")

    def element(self, x: Operand, row: str, key: str) -> str:
        """The element of a mask's tensor, or of the sink, for a query and a key, as it is stored."""
        places = [*self.lead, row, key][self.spec.rank - len(x.shape) :]
        at = ", ".join(self.t.index(0) if d == 1 else p for d, p in zip(x.shape, places, strict=True))
        return self.t.let(f"tensor.extract {x.name}[{at}] : {x.type}")

    def store(self, row: str, chunks: Sequence[str], width: int) -> None:
        """Writes a row of the output, of vectors of f32."""
        t, spec, out, tied = self.t, self.spec, self.out, tied_dims(self.out.shape, self.dims)
        canonical = [*self.lead, row, "0"]
        offsets = [canonical[axis] for axis in spec.o_layout]
        sizes = [str(spec.Dv) if axis == spec.rank - 1 else "1" for axis in spec.o_layout]
        source, place = f"{out.name}_tied" if tied else f"{out.name}_arg", self._place(offsets, sizes)
        type_, bound = tensor_type((spec.Dv,), out.element), f"{out.bound('writeonly')}{tied}"
        result = t.let(f"iree_tensor_ext.dispatch.tensor.load {source}, {place} : {bound} -> {type_}")
        for i, chunk in enumerate(chunks):
            vec = f"vector<{width}x{out.element}>"
            if out.element != "f32":
                chunk = t.let(f"arith.truncf {chunk} : vector<{width}xf32> to {vec}")
            write = f"vector.transfer_write {chunk}, {result}[{t.index(i * width)}] {{in_bounds = [true]}}"
            result = t.let(f"{write} : {vec}, {type_}")
        t.do(f"iree_tensor_ext.dispatch.tensor.store {result}, {source}, {place} : {type_} -> {bound}")
