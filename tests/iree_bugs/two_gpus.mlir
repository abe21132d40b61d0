// One program over two GPUs. `iree-compile --iree-hal-target-device=a=cuda[0] --iree-hal-target-device=b=cuda[1] --iree-cuda-target=sm_80`,
// and then `iree-run-module --device=cuda://0 --device=cuda://1 --function=main --input=4xf32=1`.
util.func public @main(%x: tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@a>}) -> (tensor<4xf32> {iree.abi.affinity = #hal.device.promise<@a>}) {
  %there = flow.tensor.transfer %x : tensor<4xf32> to #hal.device.promise<@b>
  %sum = arith.addf %there, %there : tensor<4xf32>
  %back = flow.tensor.transfer %sum : tensor<4xf32> to #hal.device.promise<@a>
  util.return %back : tensor<4xf32>
}
