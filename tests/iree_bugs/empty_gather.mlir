// Rows of a table, none of them for each of a batch.
module {
  func.func @main(%x: !torch.vtensor<[29,48],f32>, %at: !torch.vtensor<[?,0],si64>) -> !torch.vtensor<[?,0,48],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 8 : si64} {
    %y = torch.operator "onnx.Gather"(%x, %at) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[29,48],f32>, !torch.vtensor<[?,0],si64>) -> !torch.vtensor<[?,0,48],f32>
    return %y : !torch.vtensor<[?,0,48],f32>
  }
}
