// (b * h, 4) as (-1, h, 4), h being the size of another tensor.
module {
  func.func @main(%x: !torch.vtensor<[?,4],f32>, %other: !torch.vtensor<[?],f32>) -> !torch.vtensor<[?,?,4],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %minus = torch.operator "onnx.Constant"() {torch.onnx.value = dense<-1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %four = torch.operator "onnx.Constant"() {torch.onnx.value = dense<4> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %h = torch.operator "onnx.Shape"(%other) : (!torch.vtensor<[?],f32>) -> !torch.vtensor<[1],si64>
    %to = torch.operator "onnx.Concat"(%minus, %h, %four) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[3],si64>
    %y = torch.operator "onnx.Reshape"(%x, %to) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[3],si64>) -> !torch.vtensor<[?,?,4],f32>
    %z = torch.operator "onnx.Mul"(%y, %y) : (!torch.vtensor<[?,?,4],f32>, !torch.vtensor<[?,?,4],f32>) -> !torch.vtensor<[?,?,4],f32>
    return %z : !torch.vtensor<[?,?,4],f32>
  }
}
