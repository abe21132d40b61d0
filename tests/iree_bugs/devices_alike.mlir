// With --iree-hal-target-device=a=local --iree-hal-target-device=b=local: both devices become one, since they are equal globals, and
// everything runs on the first; with local[0] and local[1] they stay two.
util.func public @main(%x: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@a>}) -> (tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@a>}) {
  %there = flow.tensor.transfer %x : tensor<4xf32> to #hal.device.promise<@b>
  %sum = arith.addf %there, %there : tensor<4xf32>
  %back = flow.tensor.transfer %sum : tensor<4xf32> to #hal.device.promise<@a>
  util.return %back : tensor<4xf32>
}
