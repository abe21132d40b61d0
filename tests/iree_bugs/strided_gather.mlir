// A gather of every second column.
module {
  func.func @main(%x: !torch.vtensor<[4,12],f32>, %at: !torch.vtensor<[5],si64>) -> !torch.vtensor<[4,5],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 8 : si64} {
    %start = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %end = torch.operator "onnx.Constant"() {torch.onnx.value = dense<12> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %axis = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %step = torch.operator "onnx.Constant"() {torch.onnx.value = dense<2> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %half = torch.operator "onnx.Slice"(%x, %start, %end, %axis, %step) : (!torch.vtensor<[4,12],f32>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[4,6],f32>
    %y = torch.operator "onnx.Gather"(%half, %at) {torch.onnx.axis = 1 : si64} : (!torch.vtensor<[4,6],f32>, !torch.vtensor<[5],si64>) -> !torch.vtensor<[4,5],f32>
    return %y : !torch.vtensor<[4,5],f32>
  }
}
