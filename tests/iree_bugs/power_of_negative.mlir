// -1 to the power of 0, 1 and 2.
module {
  func.func @main(%x: !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %base = torch.operator "onnx.Constant"() {torch.onnx.value = dense<-1.0> : tensor<f32>} : () -> !torch.vtensor<[],f32>
    %y = torch.operator "onnx.Pow"(%base, %x) : (!torch.vtensor<[],f32>, !torch.vtensor<[3],f32>) -> !torch.vtensor<[3],f32>
    return %y : !torch.vtensor<[3],f32>
  }
}
