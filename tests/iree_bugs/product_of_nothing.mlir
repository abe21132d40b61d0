// Sums of no numbers, which are 0.
module {
  func.func @main(%x: !torch.vtensor<[3,0],f32>, %w: !torch.vtensor<[0,4],f32>) -> !torch.vtensor<[3,4],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 8 : si64} {
    %y = torch.operator "onnx.MatMul"(%x, %w) : (!torch.vtensor<[3,0],f32>, !torch.vtensor<[0,4],f32>) -> !torch.vtensor<[3,4],f32>
    return %y : !torch.vtensor<[3,4],f32>
  }
}
