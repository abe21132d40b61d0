// The places of all elements of a free axis in falling order.
module {
  func.func @main(%x: !torch.vtensor<[?],f32>) -> !torch.vtensor<[?],si64> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %n = torch.operator "onnx.Shape"(%x) : (!torch.vtensor<[?],f32>) -> !torch.vtensor<[1],si64>
    %y:2 = torch.operator "onnx.TopK"(%x, %n) {torch.onnx.axis = -1 : si64} : (!torch.vtensor<[?],f32>, !torch.vtensor<[1],si64>) -> (!torch.vtensor<[?],f32>, !torch.vtensor<[?],si64>)
    return %y#1 : !torch.vtensor<[?],si64>
  }
}
