// Rows of two free lengths by a weight: the first length is taken for 1.
module {
  func.func @main(%x: !torch.vtensor<[?,?,32],f32>, %w: !torch.vtensor<[32,4,8],f32>) -> !torch.vtensor<[?,?,4,8],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %y = torch.operator "onnx.Einsum"(%x, %w) {torch.onnx.equation = "abm,muh->abuh"} : (!torch.vtensor<[?,?,32],f32>, !torch.vtensor<[32,4,8],f32>) -> !torch.vtensor<[?,?,4,8],f32>
    return %y : !torch.vtensor<[?,?,4,8],f32>
  }
}
