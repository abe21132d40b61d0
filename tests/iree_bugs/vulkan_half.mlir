// For the Vulkan device that iree-compile takes unless told otherwise, which has no f16 and stores 32 bits at a time, a select between
// f16 is computed wrongly, silently: the second half of the result is 0 and -1.875.
func.func @main(%a: tensor<64x64xf16>, %b: tensor<64x64xi1>) -> tensor<64x64xf16> {
  %e = tensor.empty() : tensor<64x64xf16>
  %z = arith.constant -1.0 : f16
  %0 = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>], iterator_types = ["parallel", "parallel"]}
      ins(%a, %b : tensor<64x64xf16>, tensor<64x64xi1>) outs(%e : tensor<64x64xf16>) {
  ^bb0(%x: f16, %y: i1, %o: f16):
    %s = arith.select %y, %x, %z : f16
    linalg.yield %s : f16
  } -> tensor<64x64xf16>
  return %0 : tensor<64x64xf16>
}
