// In packed layout a product of batches is wrong, but for the first one, whose left operand is a product by a matrix.
module {
  func.func @main(%a: !torch.vtensor<[2,7,24],f32>, %w: !torch.vtensor<[24,48],f32>, %z: !torch.vtensor<[2,48,16],f32>) -> !torch.vtensor<[2,7,16],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %rows = torch.operator "onnx.MatMul"(%a, %w) : (!torch.vtensor<[2,7,24],f32>, !torch.vtensor<[24,48],f32>) -> !torch.vtensor<[2,7,48],f32>
    %y = torch.operator "onnx.MatMul"(%rows, %z) : (!torch.vtensor<[2,7,48],f32>, !torch.vtensor<[2,48,16],f32>) -> !torch.vtensor<[2,7,16],f32>
    return %y : !torch.vtensor<[2,7,16],f32>
  }
}
