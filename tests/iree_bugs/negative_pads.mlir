// Pads of 1 and -1 shift the row; what comes out is the row as it was.
module {
  func.func @main(%x: !torch.vtensor<[1,5],f32>) -> !torch.vtensor<[1,5],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %pads = torch.operator "onnx.Constant"() {torch.onnx.value = dense<[0, 1, 0, -1]> : tensor<4xsi64>} : () -> !torch.vtensor<[4],si64>
    %y = torch.operator "onnx.Pad"(%x, %pads) : (!torch.vtensor<[1,5],f32>, !torch.vtensor<[4],si64>) -> !torch.vtensor<[1,5],f32>
    return %y : !torch.vtensor<[1,5],f32>
  }
}
