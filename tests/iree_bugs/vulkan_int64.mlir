// For the Vulkan device that iree-compile takes unless told otherwise, which has no int64, not all vectors of them are emulated:
// "failed to legalize operation 'vector.broadcast'".
func.func @main(%a: tensor<64xi64>) -> tensor<64x64xi64> {
  %e = tensor.empty() : tensor<64x64xi64>
  %1 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%a : tensor<64xi64>) outs(%e : tensor<64x64xi64>) {
  ^bb0(%x: i64, %o: i64):
    linalg.yield %x : i64
  } -> tensor<64x64xi64>
  return %1 : tensor<64x64xi64>
}
