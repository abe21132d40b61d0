// A Split of an opset before 13, whose sizes are an attribute: 2 and 4 of 6 columns. The second result begins at 3, and ends in other
// memory.
module {
  func.func @main(%x: !torch.vtensor<[1,6],f32>) -> (!torch.vtensor<[1,2],f32>, !torch.vtensor<[1,4],f32>) attributes {torch.onnx_meta.opset_version = 11 : si64, torch.onnx_meta.ir_version = 6 : si64} {
    %y:2 = torch.operator "onnx.Split"(%x) {torch.onnx.axis = 1 : si64, torch.onnx.split = [2 : si64, 4 : si64]} : (!torch.vtensor<[1,6],f32>) -> (!torch.vtensor<[1,2],f32>, !torch.vtensor<[1,4],f32>)
    return %y#0, %y#1 : !torch.vtensor<[1,2],f32>, !torch.vtensor<[1,4],f32>
  }
}
