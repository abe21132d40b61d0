// The second sequence has one element: behind it the result is to be 0.
module {
  func.func @main(%x: !torch.vtensor<[4,2,3],f32>, %lengths: !torch.vtensor<[2],si32>) -> !torch.vtensor<[4,1,2,2],f32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 8 : si64} {
    %none = torch.constant.none
    %w = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0.5> : tensor<1x8x3xf32>} : () -> !torch.vtensor<[1,8,3],f32>
    %r = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0.25> : tensor<1x8x2xf32>} : () -> !torch.vtensor<[1,8,2],f32>
    %y:3 = torch.operator "onnx.LSTM"(%x, %w, %r, %none, %lengths) {torch.onnx.hidden_size = 2 : si64} : (!torch.vtensor<[4,2,3],f32>, !torch.vtensor<[1,8,3],f32>, !torch.vtensor<[1,8,2],f32>, !torch.none, !torch.vtensor<[2],si32>) -> (!torch.vtensor<[4,1,2,2],f32>, !torch.vtensor<[1,2,2],f32>, !torch.vtensor<[1,2,2],f32>)
    return %y#0 : !torch.vtensor<[4,1,2,2],f32>
  }
}
