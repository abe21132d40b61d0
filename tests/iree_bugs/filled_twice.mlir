// Two vectors of one number each, which dispatches read in front of a branch and behind it.
flow.executable private @ex {
  flow.executable.export public @f workgroups(%w: index) -> (index, index, index) {
    %c1 = arith.constant 1 : index
    flow.return %w, %c1, %c1 : index, index, index
  }
  builtin.module {
    func.func @f(%x: !iree_tensor_ext.dispatch.tensor<readonly:tensor<?x4xf32>>, %a: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xf32>>, %b: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4xf32>>, %n: index, %y: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<?x4xf32>>) {
      return
    }
  }
}
util.func public @main(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %zeros = arith.constant dense<0.0> : tensor<4xf32>
  %ones = arith.constant dense<1.0> : tensor<4xf32>
  %c0 = arith.constant 0 : index
  %c16 = arith.constant 16 : index
  %n = tensor.dim %x, %c0 : tensor<?x4xf32>
  %few = arith.cmpi ule, %n, %c16 : index
  %first = flow.dispatch @ex::@f[%n](%x, %ones, %zeros, %n) : (tensor<?x4xf32>{%n}, tensor<4xf32>, tensor<4xf32>, index) -> tensor<?x4xf32>{%n}
  %second = scf.if %few -> (tensor<?x4xf32>) {
    %some = flow.dispatch @ex::@f[%n](%first, %ones, %ones, %n) : (tensor<?x4xf32>{%n}, tensor<4xf32>, tensor<4xf32>, index) -> tensor<?x4xf32>{%n}
    scf.yield %some : tensor<?x4xf32>
  } else {
    %some = flow.dispatch @ex::@f[%n](%x, %zeros, %ones, %n) : (tensor<?x4xf32>{%n}, tensor<4xf32>, tensor<4xf32>, index) -> tensor<?x4xf32>{%n}
    scf.yield %some : tensor<?x4xf32>
  }
  %third = flow.dispatch @ex::@f[%n](%second, %ones, %zeros, %n) : (tensor<?x4xf32>{%n}, tensor<4xf32>, tensor<4xf32>, index) -> tensor<?x4xf32>{%n}
  util.return %third : tensor<?x4xf32>
}
