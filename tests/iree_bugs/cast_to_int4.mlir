// Cast to 4-bit integers is refused.
module {
  func.func @main(%x: !torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],si4> attributes {torch.onnx_meta.opset_version = 21 : si64, torch.onnx_meta.ir_version = 10 : si64} {
    %y = torch.operator "onnx.Cast"(%x) {torch.onnx.to = 22 : si64} : (!torch.vtensor<[4,8],f32>) -> !torch.vtensor<[4,8],si4>
    return %y : !torch.vtensor<[4,8],si4>
  }
}
