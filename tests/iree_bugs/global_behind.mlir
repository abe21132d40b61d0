// A store to a global of tensors that is defined behind the function that stores (here by inlining) is not lowered.
func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {
  %sum = util.call @count(%x) : (tensor<4xi32>) -> tensor<4xi32>
  return %sum : tensor<4xi32>
}
util.global private mutable @counter = dense<0> : tensor<4xi32>
util.func private @count(%x: tensor<4xi32>) -> tensor<4xi32> {
  %before = util.global.load @counter : tensor<4xi32>
  %sum = arith.addi %before, %x : tensor<4xi32>
  util.global.store %sum, @counter : tensor<4xi32>
  util.return %sum : tensor<4xi32>
}
