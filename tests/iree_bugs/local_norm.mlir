// Silently, of a free batch: other sums of squares than those of channels near each other. Here each has itself and both beside it.
module {
  func.func @main(%x: !torch.vtensor<[?,8,3,4],f32>) -> !torch.vtensor<[?,8,3,4],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %y = torch.operator "onnx.LRN"(%x) {torch.onnx.size = 3 : si64, torch.onnx.alpha = 3.0 : f32, torch.onnx.beta = 1.0 : f32, torch.onnx.bias = 1.0 : f32} : (!torch.vtensor<[?,8,3,4],f32>) -> !torch.vtensor<[?,8,3,4],f32>
    return %y : !torch.vtensor<[?,8,3,4],f32>
  }
}
