// Rounding to bf16 and back is taken together for nothing: the result keeps all bits of the f32. (f16 is rounded as it should be.)
func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
  %empty = tensor.empty() : tensor<8xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(d) -> (d)>, affine_map<(d) -> (d)>], iterator_types = ["parallel"]}
      ins(%x : tensor<8xf32>) outs(%empty : tensor<8xf32>) {
  ^bb0(%a: f32, %out: f32):
    %b = arith.truncf %a : f32 to bf16
    %c = arith.extf %b : bf16 to f32
    linalg.yield %c : f32
  } -> tensor<8xf32>
  return %y : tensor<8xf32>
}
