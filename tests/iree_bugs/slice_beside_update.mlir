// The middle of a concatenation: its copy is in one region with the copy that writes what it reads, and does not wait for that.
func.func @main(%a: tensor<8x64xf32>, %b: tensor<8x64xf32>, %c: tensor<8x64xf32>) -> (tensor<24x64xf32>, tensor<8x64xf32>) {
  %empty = tensor.empty() : tensor<24x64xf32>
  %first = tensor.insert_slice %a into %empty[0, 0] [8, 64] [1, 1] : tensor<8x64xf32> into tensor<24x64xf32>
  %second = tensor.insert_slice %b into %first[8, 0] [8, 64] [1, 1] : tensor<8x64xf32> into tensor<24x64xf32>
  %joined = tensor.insert_slice %c into %second[16, 0] [8, 64] [1, 1] : tensor<8x64xf32> into tensor<24x64xf32>
  %middle = tensor.extract_slice %joined[8, 0] [8, 64] [1, 1] : tensor<24x64xf32> to tensor<8x64xf32>
  return %joined, %middle : tensor<24x64xf32>, tensor<8x64xf32>
}
