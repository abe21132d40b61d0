// Sums of rows that one operation reads along two axes: it computes those for one of the two, and all numbers but the diagonal's are
// wrong.
module {
  func.func @main(%x: !torch.vtensor<[6,7],f32>) -> !torch.vtensor<[6,6],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %last = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %sums = torch.operator "onnx.ReduceSum"(%x, %last) : (!torch.vtensor<[6,7],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[6,1],f32>
    %turned = torch.operator "onnx.Transpose"(%sums) {torch.onnx.perm = [1 : si64, 0 : si64]} : (!torch.vtensor<[6,1],f32>) -> !torch.vtensor<[1,6],f32>
    %y = torch.operator "onnx.Add"(%sums, %turned) : (!torch.vtensor<[6,1],f32>, !torch.vtensor<[1,6],f32>) -> !torch.vtensor<[6,6],f32>
    return %y : !torch.vtensor<[6,6],f32>
  }
}
