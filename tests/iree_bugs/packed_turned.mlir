// In packed layout a product of batches is wrong, but for the first one, whose left operand is read from memory (K, B, M).
module {
  func.func @main(%x: !torch.vtensor<[7,2,5],f32>, %z: !torch.vtensor<[2,7,9],f32>) -> !torch.vtensor<[2,5,9],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %turned = torch.operator "onnx.Transpose"(%x) {torch.onnx.perm = [1 : si64, 2 : si64, 0 : si64]} : (!torch.vtensor<[7,2,5],f32>) -> !torch.vtensor<[2,5,7],f32>
    %y = torch.operator "onnx.MatMul"(%turned, %z) : (!torch.vtensor<[2,5,7],f32>, !torch.vtensor<[2,7,9],f32>) -> !torch.vtensor<[2,5,9],f32>
    return %y : !torch.vtensor<[2,5,9],f32>
  }
}
