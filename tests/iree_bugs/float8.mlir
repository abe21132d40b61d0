// Numbers that round up to the least normal number of eight bits become zero, and those beyond the largest NaN.
module {
  func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> attributes {torch.onnx_meta.opset_version = 19 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %one = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1.0> : tensor<f32>} : () -> !torch.vtensor<[],f32>
    %zero = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0.0> : tensor<f8E4M3FN>} : () -> !torch.vtensor<[],f8E4M3FN>
    %q = torch.operator "onnx.QuantizeLinear"(%x, %one, %zero) : (!torch.vtensor<[4],f32>, !torch.vtensor<[],f32>, !torch.vtensor<[],f8E4M3FN>) -> !torch.vtensor<[4],f8E4M3FN>
    %y = torch.operator "onnx.DequantizeLinear"(%q, %one, %zero) : (!torch.vtensor<[4],f8E4M3FN>, !torch.vtensor<[],f32>, !torch.vtensor<[],f8E4M3FN>) -> !torch.vtensor<[4],f32>
    return %y : !torch.vtensor<[4],f32>
  }
}
