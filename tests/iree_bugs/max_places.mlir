// The places of maxima are counted within an image, not among all elements.
module {
  func.func @main(%x: !torch.vtensor<[1,2,1,2],f32>) -> !torch.vtensor<[1,2,1,1],si64> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %made:2 = torch.operator "onnx.MaxPool"(%x) {torch.onnx.kernel_shape = [1 : si64, 2 : si64]} : (!torch.vtensor<[1,2,1,2],f32>) -> (!torch.vtensor<[1,2,1,1],f32>, !torch.vtensor<[1,2,1,1],si64>)
    return %made#1 : !torch.vtensor<[1,2,1,1],si64>
  }
}
