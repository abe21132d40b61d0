// The cosine of f64 is a call of the C library, which is not linked.
module {
  func.func @main(%x: !torch.vtensor<[4],f64>) -> !torch.vtensor<[4],f64> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %y = torch.operator "onnx.Cos"(%x) : (!torch.vtensor<[4],f64>) -> !torch.vtensor<[4],f64>
    return %y : !torch.vtensor<[4],f64>
  }
}
