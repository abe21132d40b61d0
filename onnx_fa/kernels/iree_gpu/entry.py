"""The function that a program calls for a GPU's kernel, and its executables: operands are padded, V is transposed where the tiles
want it, and the attention is dispatched."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_fa.kernels.iree_gpu.body import GpuBody
from onnx_fa.kernels.iree_gpu.boundary import PADDED, Boundary
from onnx_fa.kernels.iree_gpu.matmul import translation_info
from onnx_fa.kernels.iree_gpu.operand import Operand
from onnx_fa.kernels.iree_gpu.tiles import GpuConfig
from onnx_fa.kernels.mlir.entry import KernelEntry
from onnx_fa.kernels.mlir.text import INDEX, Text, executable, tensor_type
from onnx_fa.spec.attention import AttentionSpec
from onnx_fa.spec.target import Target
from onnx_fa.spec.terms import Dim


class GpuEntry(KernelEntry):
    """The entry of a `site`, whose dispatch sees `spec`, the site with its queries folded."""

    def __init__(self, site: AttentionSpec, spec: AttentionSpec, target: Target, name: str, config: GpuConfig) -> None:
        super().__init__(site, name)
        self.spec, self.target, self.config = spec, target, config
        self.boundary = b = Boundary(spec, target, config)
        self.dims = b.dims
        self.body = GpuBody(spec, config, target, b.inside, b.out, b.sizes, b.value)

    def text(self) -> str:
        """Executables and function."""
        b, operations = self.boundary, self.body.render()
        info = translation_info(self.target, self.config.subgroups, self.config.pipeline_stages)
        parts = [self._executable("attention", [*self.body.operands, b.out], operations, info)]
        if b.transposed is not None:
            parts.append(self._executable("transpose", [b.operands[2], b.transposed], self._transpose(b.transposed)))
        return "\n".join(["\n".join(p) for p in parts] + self._function()) + "\n"

    # Executables.

    def _transpose(self, vt: Operand) -> list[str]:
        """The body of the dispatch that transposes V."""
        t, v = Text(), self.boundary.operands[2]
        dynamic = ", ".join(self.dims[d] for d in vt.shape if isinstance(d, str))
        empty = t.let(f"tensor.empty({dynamic}) : {vt.type}")
        order = self.boundary.order()
        t.do(f"%result = linalg.transpose ins(%v : {v.type}) outs({empty} : {vt.type}) permutation = {order}")
        return t.render()

    def _executable(
        self, part: str, tensors: Sequence[Operand], body: Sequence[str], translation: str = ""
    ) -> list[str]:
        """An executable of one function; the last of `tensors` is what it writes."""
        args, lines, symbols = [], [], len(self.dims)
        for i in range(symbols):
            lines.append(f"%dim{i} = iree_tensor_ext.dispatch.workload.ordinal %dim{i}_arg, {i} : index")
        for x in tensors:
            access = "writeonly" if x is tensors[-1] else "readonly"
            type_, tied = f"!iree_tensor_ext.dispatch.tensor<{access}:{x.type}>", self.boundary.tied(x.shape)
            args.append(f"{x.name}_arg: {type_}")
            source = f"{x.name}_arg"
            if tied:
                source = f"{x.name}_tied"
                lines.append(f"{source} = flow.dispatch.tie_shape {x.name}_arg : {type_}{tied}")
            if access == "readonly":
                load = f"iree_tensor_ext.dispatch.tensor.load {source}, {self._whole(x)}"
                lines.append(f"{x.name} = {load} : {type_}{tied} -> {x.type}")
            else:
                store = f"iree_tensor_ext.dispatch.tensor.store %result, {source}, {self._whole(x)}"
                end = f"{store} : {x.type} -> {type_}{tied}"
        args[-1:-1] = [f"%dim{i}_arg: index" for i in range(symbols)]
        workload = [f"%w{i}" for i in range(symbols)]
        return executable(f"{self.name}_{part}", workload, None, args, [*lines, *body, end], translation)

    def _size(self, d: Dim) -> str:
        return str(d) if isinstance(d, int) else self.dims[d]

    def _whole(self, x: Operand) -> str:
        sizes = ", ".join(map(self._size, x.shape))
        zeros, ones = ", ".join("0" for _ in x.shape), ", ".join("1" for _ in x.shape)
        return f"offsets = [{zeros}], sizes = [{sizes}], strides = [{ones}]"

    # The function.

    def _function(self) -> list[str]:
        site, spec = self.site, self.spec
        for symbol in spec.symbols:
            self.measure(symbol, self.dims[symbol])
        elements = [x.element for x in self.boundary.operands]
        values = self.pass_operands(site.operand_shapes, spec.operand_shapes, elements)
        self._measure_padded()
        result = self.reshape(self._attend(values), spec.out_shape, site.results[0][0], spec.dtype)
        return self.lines([result])

    def _measure_padded(self) -> None:
        """The lengths that are padded when the program runs."""
        t, spec, b = self.t, self.spec, self.boundary
        for axis, symbol in PADDED.items():
            if symbol in self.dims:
                length = spec.Sq if axis == "m" else spec.Skv
                block = t.index(self.config.BM if axis == "m" else self.config.BN)
                assert isinstance(length, str)
                now = self.dims[length]
                if b.padding[axis] == "blocks":
                    padded = t.arith("muli", t.arith("ceildivui", now, block), block)
                else:
                    padded = t.arith("maxsi", now, block)
                t.do(f"{self.dims[symbol]} = arith.addi {padded}, {t.index(0)} : index")

    def _attend(self, values: Sequence[str]) -> str:
        """Pads, calls, cuts. Where padding is needed only for short lengths, that is decided when the program runs."""
        t, b = self.t, self.boundary
        needs = [(x, own) for x, own in zip(b.operands, self.spec.operand_shapes, strict=True) if x.shape != own]
        lengths = [a for a in ("m", "k") if isinstance(b.sizes[a], str)]
        fixed = any(isinstance(p, int) and p != d for x, own in needs for p, d in zip(x.shape, own, strict=True))
        if not lengths or fixed or any(b.padding[a] == "blocks" for a in lengths):
            return self._call(values, True)
        enough = t.constant("1", "i1")
        for a in lengths:
            length = self.spec.Sq if a == "m" else self.spec.Skv
            assert isinstance(length, str)
            at_least = t.index(self.config.BM if a == "m" else self.config.BN)
            enough = t.arith("andi", enough, t.arith("cmpi sge,", self.dims[length], at_least), "i1")
        type_ = tensor_type(self.spec.out_shape, self.spec.dtype)
        result = t.let(f"scf.if {enough} -> ({type_}) {{")
        t.do(f"scf.yield {self._call(values, False)} : {type_}")
        t.do("} else {")
        t.do(f"scf.yield {self._call(values, True)} : {type_}")
        t.do("}")
        return result

    def _call(self, values: Sequence[str], pad: bool) -> str:
        """The output, from operands that are padded first if `pad`; else they have a length that happens to be a padded one."""
        t, b = self.t, self.boundary
        passed = []
        for value, x, own in zip(values, b.operands, self.spec.operand_shapes, strict=True):
            passed.append(self._pad(value, own, x) if pad else self.reshape(value, own, x.shape, x.element))
        outside = list(b.operands)
        if b.transposed is not None:
            passed[2] = self._dispatch("transpose", [b.operands[2]], [passed[2]], b.transposed)
            outside[2] = b.transposed
        inside = self.body.operands
        passed = [self.reshape(p, x.shape, y.shape, x.element) for p, x, y in zip(passed, outside, inside, strict=True)]
        result = self._dispatch("attention", inside, passed, b.out)
        own = self.spec.out_shape
        if not pad:
            return self.reshape(result, b.out.shape, own, self.spec.dtype)
        if own == b.out.shape:
            return result
        sizes = ", ".join(map(self._size, own))
        zeros, ones = ", ".join("0" for _ in own), ", ".join("1" for _ in own)
        cut = f"tensor.extract_slice {result}[{zeros}] [{sizes}] [{ones}]"
        return t.let(f"{cut} : {b.out.type} to {tensor_type(own, self.spec.dtype)}")

    def _pad(self, value: str, own: Sequence[Dim], x: Operand) -> str:
        """The tensor with zeros behind, up to the shape of x."""
        if tuple(own) == x.shape:
            return value
        t, highs = self.t, []
        for have, want in zip(own, x.shape, strict=True):
            if have == want:
                highs.append("0")
            elif isinstance(have, int) and isinstance(want, int):
                highs.append(str(want - have))
            else:
                sizes = (t.index(d) if isinstance(d, int) else self.dims[d] for d in (want, have))
                highs.append(t.arith("subi", *sizes))
        zero = t.constant("0" if x.element.startswith("i") else "0.0", x.element)
        indices = ", ".join(f"%i{n}: index" for n in range(len(own)))
        return t.let(
            f"tensor.pad {value} low[{', '.join('0' for _ in own)}] high[{', '.join(highs)}] {{\n^bb0({indices}):\n"
            f"tensor.yield {zero} : {x.element}\n}} : {tensor_type(own, x.element)} to {x.type}"
        )

    def _dispatch(self, part: str, tensors: Sequence[Operand], values: Sequence[str], out: Operand) -> str:
        entry = f"@{self.name}_{part}::@{self.name}_{part}"
        dims = list(self.dims.values())
        workload = f"[{', '.join(dims)}]" if dims else ""
        types = [f"{x.type}{self.boundary.tied(x.shape)}" for x in tensors] + [INDEX] * len(dims)
        return self.t.let(
            f"flow.dispatch {entry}{workload}({', '.join([*values, *dims])}) : ({', '.join(types)}) -> "
            f"{out.type}{self.boundary.tied(out.shape)}"
        )
