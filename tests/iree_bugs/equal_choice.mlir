// A choice between a number and itself, by a condition of more elements.
module {
  func.func @main(%x: !torch.vtensor<[?],i1>, %a: !torch.vtensor<[],f32>) -> !torch.vtensor<[?],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 8 : si64} {
    %y = torch.operator "onnx.Where"(%x, %a, %a) : (!torch.vtensor<[?],i1>, !torch.vtensor<[],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[?],f32>
    return %y : !torch.vtensor<[?],f32>
  }
}
