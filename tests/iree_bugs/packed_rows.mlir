// In packed layout a product of batches is wrong, but for the first one, whose left operand has a number spread over each row.
module {
  func.func @main(%a: !torch.vtensor<[2,7,64],f32>, %v: !torch.vtensor<[2,64,48],f32>) -> !torch.vtensor<[2,7,48],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %axis = torch.operator "onnx.Constant"() {torch.onnx.value = dense<-1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %sum = torch.operator "onnx.ReduceSum"(%a, %axis) : (!torch.vtensor<[2,7,64],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[2,7,1],f32>
    %rows = torch.operator "onnx.Div"(%a, %sum) : (!torch.vtensor<[2,7,64],f32>, !torch.vtensor<[2,7,1],f32>) -> !torch.vtensor<[2,7,64],f32>
    %y = torch.operator "onnx.MatMul"(%rows, %v) : (!torch.vtensor<[2,7,64],f32>, !torch.vtensor<[2,64,48],f32>) -> !torch.vtensor<[2,7,48],f32>
    return %y : !torch.vtensor<[2,7,48],f32>
  }
}
