// A small double becomes zero as f16, not one of f16's numbers below 2^-14.
module {
  func.func @main(%x: !torch.vtensor<[3],f64>) -> !torch.vtensor<[3],f16> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %p = torch.operator "onnx.Cast"(%x) {torch.onnx.to = 10 : si64} : (!torch.vtensor<[3],f64>) -> !torch.vtensor<[3],f16>
    return %p : !torch.vtensor<[3],f16>
  }
}
