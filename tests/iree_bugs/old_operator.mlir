// Erf of an opset before 13.
module {
  func.func @main(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> attributes {torch.onnx_meta.opset_version = 12 : si64, torch.onnx_meta.ir_version = 7 : si64} {
    %y = torch.operator "onnx.Erf"(%x) : (!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>
    return %y : !torch.vtensor<[2],f32>
  }
}
