// Of several vector.transfer_writes into a tensor of rank 1 and dynamic size, one that reaches over the end but does not start at
// 0 writes nothing: a copy of 7 numbers by 4 lanes lacks the last 3.
flow.executable private @copy {
  flow.executable.export public @copy workgroups() -> (index, index, index) {
    %one = arith.constant 1 : index
    flow.return %one, %one, %one : index, index, index
  }
  builtin.module {
    func.func @copy(%in_: !iree_tensor_ext.dispatch.tensor<readonly:tensor<?xf32>>, %m: index, %out_: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<?xf32>>) attributes {translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<LinalgExtTileAndVectorize>>} {
      %z0 = arith.constant 0 : index
      %four = arith.constant 4 : index
      %zero = arith.constant 0.0 : f32
      %in = flow.dispatch.tie_shape %in_ : !iree_tensor_ext.dispatch.tensor<readonly:tensor<?xf32>>{%m}
      %out = flow.dispatch.tie_shape %out_ : !iree_tensor_ext.dispatch.tensor<writeonly:tensor<?xf32>>{%m}
      %t = iree_tensor_ext.dispatch.tensor.load %in, offsets = [0], sizes = [%m], strides = [1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<?xf32>>{%m} -> tensor<?xf32>
      %e = tensor.empty(%m) : tensor<?xf32>
      %a = vector.transfer_read %t[%z0], %zero : tensor<?xf32>, vector<4xf32>
      %b = vector.transfer_read %t[%four], %zero : tensor<?xf32>, vector<4xf32>
      %e0 = vector.transfer_write %a, %e[%z0] : vector<4xf32>, tensor<?xf32>
      %e1 = vector.transfer_write %b, %e0[%four] : vector<4xf32>, tensor<?xf32>
      iree_tensor_ext.dispatch.tensor.store %e1, %out, offsets = [0], sizes = [%m], strides = [1] : tensor<?xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<?xf32>>{%m}
      return
    }
  }
}
func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %n = tensor.dim %x, %c0 : tensor<?xf32>
  %y = flow.dispatch @copy::@copy(%x, %n) : (tensor<?xf32>{%n}, index) -> tensor<?xf32>{%n}
  return %y : tensor<?xf32>
}
