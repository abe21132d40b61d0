// An integer becomes bf16 by a function that is not linked, on processors without AVX512_BF16.
module {
  func.func @main(%x: !torch.vtensor<[32],si64>) -> !torch.vtensor<[32],bf16> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %p = torch.operator "onnx.Cast"(%x) {torch.onnx.to = 16 : si64} : (!torch.vtensor<[32],si64>) -> !torch.vtensor<[32],bf16>
    return %p : !torch.vtensor<[32],bf16>
  }
}
