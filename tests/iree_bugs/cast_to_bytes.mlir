// Floats above 127 become 127 as bytes without a sign, on processors without AVX-512.
module {
  func.func @main(%x: !torch.vtensor<[32],f32>) -> !torch.vtensor<[32],ui8> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %p = torch.operator "onnx.Cast"(%x) {torch.onnx.to = 2 : si64} : (!torch.vtensor<[32],f32>) -> !torch.vtensor<[32],ui8>
    return %p : !torch.vtensor<[32],ui8>
  }
}
